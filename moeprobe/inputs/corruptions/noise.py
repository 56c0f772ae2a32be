"""Noise of ImageNet-C, drawn anew for every pixel and channel; its strength does not depend on the image's size."""

import numpy as np

from moeprobe.inputs.corruptions.resampling import Pixels

_GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviation
_SHOT = (60, 25, 12, 5, 3)  # photons of a white pixel
_IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)  # share of values
_SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)  # standard deviation at white


def gaussian_noise(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add Gaussian noise: x + σ n."""
    return pixels + _GAUSSIAN[severity - 1] * rng.standard_normal(pixels.shape, dtype=np.float32)


def shot_noise(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Count photons: Poisson(c x) / c."""
    photons = _SHOT[severity - 1]
    return (rng.poisson(pixels * photons) / photons).astype(np.float32)


def impulse_noise(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Set a share of the values to 0 or 1, each half the time (salt and pepper)."""
    is_hit = rng.random(pixels.shape) < _IMPULSE[severity - 1]
    return np.where(is_hit, rng.random(pixels.shape) < 0.5, pixels).astype(np.float32)


def speckle_noise(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Add Gaussian noise in proportion to the pixel: x + σ x n."""
    return pixels * (1 + _SPECKLE[severity - 1] * rng.standard_normal(pixels.shape, dtype=np.float32))
