"""Pixels that are filtered, moved or resized."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, signal

from moeprobe.inputs.corruptions import SIDE

# Float32; what NumPy makes of them may be float64 for a while.
Pixels = NDArray[np.floating[Any]]


def scale_of(pixels: Pixels) -> float:
    """Return the factor of lengths in pixels."""
    return pixels.shape[-1] / SIDE


def gaussian(pixels: Pixels, sigma: float) -> Pixels:
    """Return pixels ``(..., S, S)`` under a Gaussian blur; edges are repeated outwards."""
    sigmas = (*[0.0] * (pixels.ndim - 2), sigma, sigma)
    return ndimage.gaussian_filter(pixels, sigmas, mode="nearest").astype(np.float32)


def convolve(pixels: Pixels, kernel: NDArray[np.float64]) -> Pixels:
    """Return the convolution with an odd, square kernel of sum 1; edges are repeated outwards."""
    reach = len(kernel) // 2
    padding = [(0, 0)] * (pixels.ndim - 2) + [(reach, reach)] * 2
    kernels = kernel.reshape((1,) * (pixels.ndim - 2) + kernel.shape)
    padded = np.pad(pixels.astype(np.float64), padding, mode="edge")
    return signal.fftconvolve(padded, kernels, mode="valid", axes=(-2, -1)).astype(np.float32)


def displace(pixels: Pixels, offsets: Pixels, *, moves: bool) -> Pixels:
    """Return N versions ``(N, 3, S, S)``, each pixel taken from an offset.

    Args:
        pixels: ``(3, S, S)``; they are mirrored outwards.
        offsets: ``(N, 2, S, S)`` right and down, in pixels.
        moves: False takes the whole pixels out of the offsets: it interpolates as before and moves less than a pixel.
    """
    side = pixels.shape[-1]
    shifts = offsets if moves else offsets - np.round(offsets)
    points = np.stack(np.meshgrid(np.arange(side), np.arange(side))) + shifts
    # grid_sample counts from -1 at the center of the first pixel to 1 at that of the last.
    grid = torch.from_numpy(2 * points / max(side - 1, 1) - 1).permute(0, 2, 3, 1).float()
    source = torch.from_numpy(pixels).expand(len(grid), -1, -1, -1)
    sampled = torch.nn.functional.grid_sample(
        source, grid, mode="bilinear", padding_mode="reflection", align_corners=True
    )
    return sampled.numpy()


def resize(texture: Pixels, side: int) -> Pixels:
    """Return a texture ``(C, H, H)`` at another side, with antialiasing."""
    source = torch.from_numpy(np.ascontiguousarray(texture, dtype=np.float32))[None]
    sizes = (side, side)
    resized = torch.nn.functional.interpolate(source, sizes, mode="bilinear", antialias=True)
    return resized[0].numpy()


def smear(pixels: Pixels, *, radius: float, sigma: float, angle: float) -> Pixels:
    """Return pixels smeared to one side along a line: the blur of a camera that moves.

    Weights fall as half a Gaussian of ``sigma`` up to ``2 * radius`` pixels away, as in ImageMagick, by which
    ImageNet-C was made. Places between pixels are interpolated; ImageMagick rounds them.

    Args:
        pixels: ``(..., S, S)``.
        radius: half the length of the line, in pixels.
        sigma: of the weights, in pixels.
        angle: of the line in radians, 0 = to the right.
    """
    along = np.linspace(0, 2 * radius, max(int(np.ceil(4 * radius)), 1) + 1)
    weights = np.exp(-(along**2) / (2 * sigma**2))
    x, y = along * np.cos(angle), along * np.sin(angle)
    reach = int(np.ceil(2 * radius)) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    column, row = np.floor(x).astype(int), np.floor(y).astype(int)
    for right in (0, 1):
        for down in (0, 1):
            share = np.abs(1 - right - (x - column)) * np.abs(1 - down - (y - row))
            np.add.at(kernel, (reach + row + down, reach + column + right), weights * share)
    return convolve(pixels, kernel / kernel.sum())
