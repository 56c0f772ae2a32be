"""Names of files that single probes write and reports read, beside tables of values."""

# An overlay: a row per patch of its images, or per token of its texts; the images in gray, a row per image.
PATCHES, TOKENS, PIXELS = "patches.csv", "tokens.csv", "pixels.png"
# The share of the tokens of each class that each expert has.
CLASSES = "classes.csv"
