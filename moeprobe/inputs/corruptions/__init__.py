"""Corruptions of ImageNet-C by name and family.

Source: D. Hendrycks and T. Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", ICLR 2019. Constants are from the authors' program for images of 224 pixels.

Pixels are float32 ``(3, S, S)`` in [0, 1]; a severity is a whole number from 1 to 5. For another S, lengths in pixels
are scaled by S / 224. Nothing is rounded to 8 bits or stored as JPEG afterwards, as the published images are.
Functions return values outside of [0, 1], which the view ``corruption`` cuts off.
"""

# The size of the images that the constants are for.
SIDE = 224
SEVERITIES = (1.0, 2.0, 3.0, 4.0, 5.0)

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
# By their families: those that the authors keep for choosing a method, which are in no mean of theirs.
EXTRA = {
    "noise": ("speckle_noise",),
    "blur": ("gaussian_blur",),
    "weather": ("spatter",),
    "digital": ("saturate",),
}
STANDARD = tuple(name for names in FAMILIES.values() for name in names)
NAMES = (*STANDARD, *(name for names in EXTRA.values() for name in names))
# Those that move content between pixels: their control resamples alike, and moves nothing.
MOVING = ("glass_blur", "zoom_blur", "elastic_transform")
# In tables: the end of the name of a control, and the mean over the corruptions of all families.
CONTROL, MEAN = "_control", "mean"
