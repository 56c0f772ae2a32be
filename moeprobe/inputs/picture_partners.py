"""A second picture of the same scene, and where each pixel of the first one is in it.

Axes: H, W pixels of the first picture, S pixels of a view's side.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.inputs.geometry import Map, PatchGrid, apply, inverse

# Where the first picture carries the second, for views: in Pillow's ``Image.info``.
PARTNER = "partner"


@dataclass(frozen=True, eq=False)
class PicturePartner:
    """Another picture of what an image shows.

    Attributes:
        image: RGB, 8 bits, of any size.
        flow: ``(H, W, 2)`` float32, by how much what each pixel shows is further to the right and further down in the
            second picture, in pixels; not-a-number where that is hidden there or not known.
    """

    image: Image.Image
    flow: NDArray[np.float32]

    def displacement(self, first: Map, second: Map, size: int) -> NDArray[np.float32]:
        """Return by how much what each pixel of a view of the first picture shows is displaced in a view of the second.

        Args:
            first: map from the first view to the first picture.
            second: map from the second view to the second picture.
            size: S of either view.

        Returns:
            ``(S, S, 2)``: to the right and down, in pixels of the views; not-a-number where it is nowhere.
        """
        points = PatchGrid(size, size, 1).centers()
        at = apply(first, points)
        column, row = np.floor(at).astype(np.int64).T
        height, width = self.flow.shape[:2]
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        # The nearest pixel's, never a mean: neighbors across the edge of an object move apart.
        flow = self.flow[row.clip(0, height - 1), column.clip(0, width - 1)].astype(np.float64)
        second_point = at + np.where(inside[:, None], flow, np.nan)
        # Beyond the second picture there is no content, whatever its view shows there.
        in_picture = ((second_point >= 0) & (second_point < self.image.size)).all(-1, keepdims=True)
        target = np.concatenate([np.where(in_picture, second_point, np.nan), points[:, 2:]], axis=-1)
        displacement = apply(inverse(second), target) - points[:, :2]
        return displacement.reshape(size, size, 2).astype(np.float32)


def flow_of_disparity(disparity: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the flow from the left to the right picture of a rectified pair, by disparities ``(H, W)`` in pixels.

    What is seen at x in the left picture is at x − disparity in the right one.

    >>> import numpy as np
    >>> from moeprobe.inputs.picture_partners import flow_of_disparity
    >>> flow_of_disparity(np.array([[3.0, np.nan]], dtype=np.float32)).tolist()
    [[[-3.0, 0.0], [nan, nan]]]
    """
    down = np.where(np.isfinite(disparity), 0, np.nan)
    return np.stack([-disparity, down], axis=-1).astype(np.float32)


def flow_of_homography(homography: Map, width: int, height: int) -> NDArray[np.float32]:
    """Return the flow ``(height, width, 2)`` of a plane, by the map from the first to the second picture.

    The map is about whole numbers, as published ones are: a pixel's center is (column, row) there.
    """
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    points = np.stack([columns.ravel(), rows.ravel(), np.ones(columns.size)], axis=-1)
    # Behind the second camera nothing is seen.
    is_seen = (points @ homography.T)[:, 2] * np.sign(homography[2, 2]) > 0
    flow = np.full((height * width, 2), np.nan, dtype=np.float32)
    flow[is_seen] = apply(homography, points[is_seen]) - points[is_seen, :2]
    return flow.reshape(height, width, 2)


def mark_hidden(
    flow: NDArray[np.float32], back: NDArray[np.float32], *, tolerance: float = 1.0
) -> NDArray[np.float32]:
    """Return a flow without what the way back does not lead home from: hidden, or beyond the frame.

    Args:
        flow: ``(H, W, 2)`` from the first to the second picture.
        back: ``(H', W', 2)`` from the second to the first.
        tolerance: pixels by which both may miss each other.
    """
    height, width = flow.shape[:2]
    rows, columns = np.mgrid[:height, :width] + 0.5
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    is_visible = np.isfinite(x) & np.isfinite(y)
    column, row = (np.floor(np.where(is_visible, axis, 0)).astype(np.int64) for axis in (x, y))
    inside = is_visible & (column >= 0) & (column < back.shape[1]) & (row >= 0) & (row < back.shape[0])
    home = back[row.clip(0, back.shape[0] - 1), column.clip(0, back.shape[1] - 1)] + flow
    comes_home = inside & (np.hypot(home[..., 0], home[..., 1]) <= tolerance)
    return np.where(comes_home[..., None], flow, np.float32(np.nan))
