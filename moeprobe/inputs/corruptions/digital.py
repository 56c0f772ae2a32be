"""Corruptions of ImageNet-C by light, color, storage and an elastic sheet."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft

from moeprobe.inputs.corruptions import SIDE
from moeprobe.inputs.corruptions.resampling import Pixels, displace, resize, scale_of

_BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # added to the value
_CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)  # what is left of it
_SATURATE = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))  # factor, then added
_PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)  # side of the small image
_JPEG = (25, 18, 15, 10, 7)  # quality
# Reach of the displacements, σ of their blur, reach of three corners of a square; the authors' shares of 244 pixels.
_ELASTIC = (
    (488.0, 170.8, 24.4),
    (488.0, 19.52, 48.8),
    (12.2, 2.44, 4.88),
    (17.08, 2.44, 4.88),
    (29.28, 2.44, 4.88),
)


def brightness(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add to the value (of HSV); nothing is drawn."""
    value = pixels.max(0)
    brighter = np.minimum(value + _BRIGHTNESS[severity - 1], 1)
    # At the same hue and saturation a color is in proportion to its value; black becomes gray.
    return np.where(value > 0, pixels * (brighter / np.where(value > 0, value, 1)), brighter)


def contrast(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Move all pixels to the mean of their channel; nothing is drawn."""
    mean = pixels.mean((1, 2), keepdims=True)
    return mean + _CONTRAST[severity - 1] * (pixels - mean)


def saturate(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Scale the saturation (of HSV) and add to it; nothing is drawn.

    As published, gray has the hue of red, so that adding makes it reddish.
    """
    factor, added = _SATURATE[severity - 1]
    value, span = pixels.max(0), np.ptp(pixels, axis=0)
    saturation = np.where(value > 0, span / np.where(value > 0, value, 1), 0)
    # How far each channel is below the value, as a share of the most: the hue.
    red_fall = np.array([0.0, 1.0, 1.0], np.float32)[:, None, None]
    fall = np.where(span > 0, (value - pixels) / np.where(span > 0, span, 1), red_fall)
    changed = (saturation * factor + added).clip(0, 1)
    return value * (1 - fall * changed)


def pixelate(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Resize to a smaller image and back, by boxes; nothing is drawn."""
    side = pixels.shape[-1]
    small = max(int(side * _PIXELATE[severity - 1]), 1)
    image = _to_image(pixels).resize((small, small), Image.Resampling.BOX)
    return _to_pixels(image.resize((side, side), Image.Resampling.BOX))


def jpeg_compression(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Store as JPEG by Pillow and read again; nothing is drawn."""
    file = io.BytesIO()
    _to_image(pixels).save(file, "JPEG", quality=_JPEG[severity - 1])
    return _to_pixels(Image.open(file, formats=["JPEG"]))


def elastic_transform(
    pixels: Pixels, severity: int, rng: np.random.Generator, *, moves: bool = True
) -> Pixels:
    """Move by an affine map and a smooth random displacement; without ``moves`` by less than a pixel.

    The map takes three corners of a square in the center, a third of the side from it, to points nearby. The
    displacement is drawn at 224 pixels and resized. Both are one resampling here, and two in the published program.
    """
    reach, sigma, corner_reach = _ELASTIC[severity - 1]
    scale, side = scale_of(pixels), pixels.shape[-1]
    third = max(side // 3, 1)
    corners = side // 2 + third * np.array([[1, 1], [1, -1], [-1, -1]])
    shifts = scale * rng.uniform(-corner_reach, corner_reach, size=(3, 2))
    # Linear in the point: the three shifts decide it.
    points = np.stack([*np.meshgrid(np.arange(side), np.arange(side)), np.ones((side, side))])
    coefficients = np.linalg.solve(np.column_stack([corners, np.ones(3)]), shifts)
    affine = np.einsum("kd,kyx->dyx", coefficients, points)
    wobble = resize(scale * reach * smooth(rng.uniform(-1, 1, size=(2, SIDE, SIDE)), sigma), side)
    return displace(pixels, (affine + wobble)[None], moves=moves)[0]


def smooth(fields: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return fields ``(..., S, S)`` under a Gaussian blur, mirrored outwards: a product in a cosine transform."""
    side = fields.shape[-1]
    response = np.exp(-((np.pi * sigma * np.arange(side) / side) ** 2) / 2)
    smooth: NDArray[np.float64] = fft.idctn(
        fft.dctn(fields, axes=(-2, -1)) * np.outer(response, response), axes=(-2, -1)
    )
    return smooth


def _to_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.round(pixels * 255).astype(np.uint8).transpose(1, 2, 0))


def _to_pixels(image: Image.Image) -> Pixels:
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255
