"""Blurs of ImageNet-C; all lengths are scaled by S / 224."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from moeprobe.inputs.corruptions.resampling import Pixels, convolve, displace, gaussian, scale_of, smear

_DEFOCUS = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius, σ of its edge
_GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # σ, reach, passes
_MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius, σ
_ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # end (excluded), step
_GAUSSIAN = (1, 2, 3, 4, 6)  # σ
# Parts of a pixel's side for the area of a disk.
_PARTS = 16


def gaussian_blur(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Blur by a Gaussian; nothing is drawn."""
    return gaussian(pixels, _GAUSSIAN[severity - 1] * scale_of(pixels))


def defocus_blur(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Blur by a disk, as a lens out of focus; nothing is drawn.

    Its edge is antialiased by the area of each pixel in the disk, then by the published Gaussian.
    """
    radius, sigma = _DEFOCUS[severity - 1]
    scale = scale_of(pixels)
    return convolve(pixels, _disk(radius * scale, sigma * scale))


def _disk(radius: float, sigma: float) -> NDArray[np.float64]:
    reach = int(np.ceil(radius + 4 * sigma)) + 1
    points = (np.arange((2 * reach + 1) * _PARTS) + 0.5) / _PARTS - reach - 0.5
    # A disk inside of one pixel blurs nothing.
    inside = points[:, None] ** 2 + points**2 <= max(radius, 0.5) ** 2
    area = inside.reshape(2 * reach + 1, _PARTS, 2 * reach + 1, _PARTS).mean((1, 3))
    smooth = ndimage.gaussian_filter(area, sigma)
    return smooth / smooth.sum()


def glass_blur(pixels: Pixels, severity: int, rng: np.random.Generator, *, moves: bool = True) -> Pixels:
    """Shuffle pixels with their neighbors between two Gaussian blurs; without ``moves`` the blurs alone.

    In a pass each pixel takes the value of a random one within the reach (at least one pixel). The published program
    swaps pixels one after the other, so that one may travel further, and no value occurs twice.
    """
    sigma, reach, passes = _GLASS[severity - 1]
    scale, side = scale_of(pixels), pixels.shape[-1]
    blurred = gaussian(pixels, sigma * scale)
    steps = max(round(reach * scale), 1)
    rows, columns = np.indices((side, side))
    for _ in range(passes if moves else 0):
        down, right = rng.integers(-steps, steps, size=(2, side, side))
        blurred = blurred[:, (rows + down).clip(0, side - 1), (columns + right).clip(0, side - 1)]
    return gaussian(blurred, sigma * scale)


def motion_blur(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """Smear along a line, within 45 degrees of the horizontal."""
    radius, sigma = _MOTION[severity - 1]
    scale, angle = scale_of(pixels), rng.uniform(-np.pi / 4, np.pi / 4)
    return smear(pixels, radius=radius * scale, sigma=sigma * scale, angle=angle)


def zoom_blur(pixels: Pixels, severity: int, rng: np.random.Generator, *, moves: bool = True) -> Pixels:
    """Average the image and its magnifications about the center; nothing is drawn.

    Without ``moves`` each magnification shifts pixels by less than one. The image counts twice, by itself and
    magnified by 1, as published.
    """
    end, step = _ZOOM[severity - 1]
    factors = np.arange(1, end, step)
    side = pixels.shape[-1]
    middle = (side - 1) / 2
    from_center = np.stack(np.meshgrid(np.arange(side), np.arange(side))) - middle
    offsets = from_center / factors[:, None, None, None] - from_center
    versions = displace(pixels, offsets, moves=moves)
    return (pixels + versions.sum(0)) / (len(factors) + 1)
