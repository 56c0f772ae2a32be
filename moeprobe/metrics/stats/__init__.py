"""From sums per image to values with intervals."""
