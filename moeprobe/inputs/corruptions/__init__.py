"""Corruptions of ImageNet-C by name and family, and the place of published files of one.

Source: D. Hendrycks and T. Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", ICLR 2019. Constants are from the authors' program for images of 224 pixels.

Pixels are float32 ``(3, S, S)`` in [0, 1]; a severity is a whole number from 1 to 5. For another S, lengths in pixels
are scaled by S / 224. Nothing is rounded to 8 bits or stored as JPEG afterwards, as the published images are.
Functions return values outside of [0, 1], which the view ``corruption`` cuts off.
"""

from urllib.parse import parse_qsl

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import describe_unknown

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
# In tables: the end of the name of a control, and the mean over the corruptions of all families: for these corruptions,
# and for others like them, of which these are a sample.
CONTROL, MEAN, MEAN_OF_ANY = "_control", "mean", "mean of any"


def parse_location(location: str | None, *, name: str) -> tuple[str, str, int]:
    """Return folder, corruption and severity of published files: ``PATH?corruption=snow&severity=3``.

    One corruption at one severity is read at a time: the same photographs under several are no independent images.

    Raises:
        UserError: one of them is missing, or there is no such corruption or severity.
    """
    path, _, query = (location or "").partition("?")
    fields = dict(parse_qsl(query, keep_blank_values=True))
    if not path or set(fields) != {"corruption", "severity"}:
        raise UserError(
            f"{name!r} needs a folder, a corruption and a severity: write "
            f"{name}:PATH?corruption=snow&severity=3 (in quotes, for the shell)."
        )
    kind, severity = fields["corruption"], fields["severity"]
    if kind not in NAMES:
        raise UserError(describe_unknown("corruption", kind, NAMES))
    if severity not in {f"{value:g}" for value in SEVERITIES}:
        raise UserError(f"The severity of {name!r} is a whole number from 1 to 5; got {severity!r}.")
    return path, kind, int(severity)
