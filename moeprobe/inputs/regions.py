"""Which patches of a view show the object and which the ground, by a mask of the source.

Axes: B images, S pixels of the view's side, P patches.
"""

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.geometry import Map, PatchGrid, apply

# Where an image carries its mask, for views: in Pillow's ``Image.info``.
MASK = "foreground"
# In the order of their codes.
REGIONS = ("background", "boundary", "foreground")
# Up to this share of its pixels a patch may be of the other kind: a mask's edge is not known better.
_SLACK = 0.05


def foreground(mask: NDArray[np.bool_], to_source: Map, size: int) -> NDArray[np.bool_]:
    """Return which pixels ``(size, size)`` of a view show the foreground of the source.

    Args:
        mask: ``(height, width)`` of the source, True on the foreground.
        to_source: map from the view to the source.
        size: side of the view in pixels.

    Returns:
        The mask at the pixels' centers; False outside the source.
    """
    points = apply(to_source, PatchGrid(size, size, 1).centers())
    column, row = np.floor(points).astype(np.int64).T
    height, width = mask.shape
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    shows = mask[row.clip(0, height - 1), column.clip(0, width - 1)] & inside
    return shows.reshape(size, size)


def regions(pixels: NDArray[np.bool_], grid: PatchGrid) -> NDArray[np.int64]:
    """Return the region ``(B, P)`` of every patch, as a number of ``REGIONS``, from foreground pixels ``(B, S, S)``."""
    side = grid.patch_size
    cut = pixels[:, : grid.rows * side, : grid.columns * side]
    share = (
        cut.reshape(len(pixels), grid.rows, side, grid.columns, side).mean((2, 4)).reshape(len(pixels), -1)
    )
    return np.where(share >= 1 - _SLACK, 2, np.where(share <= _SLACK, 0, 1))
