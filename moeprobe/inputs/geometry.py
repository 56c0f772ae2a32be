"""Where a patch of one view is in another.

Convention, stated once: coordinates are continuous ``(x, y, 1)`` in pixels; pixel ``i`` covers ``[i, i + 1)``, so
its center is ``i + 0.5``; cells (pixels, patches) are half-open. A map is a 3x3 float64 matrix that acts on column
vectors and names its direction: ``to_source`` takes a point of a view to the point of the source image shown there.

Axes: B images, P patches (row-major).

Source: the PRC paper, section III-C (``correspond``), and the code its authors released (``correspond_released``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float64]

# A border that float64 arithmetic misses by less than this (in pixels of the source, in patches of a view, or as a
# share of an area) counts as hit; otherwise rounding would decide where a point on a border belongs.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class PatchGrid:
    """``rows`` x ``columns`` square patches of ``patch_size`` pixels, numbered row by row.

    Patches of size 0 have numbers, and nobody knows where they are in the image.
    """

    rows: int
    columns: int
    patch_size: int

    @property
    def num_patches(self) -> int:
        """Number of patches."""
        return self.rows * self.columns

    def centers(self) -> NDArray[np.float64]:
        """Return the patch centers ``(P, 3)`` as homogeneous points in pixels."""
        y, x = np.mgrid[: self.rows, : self.columns].astype(np.float64) + 0.5
        return np.stack([x.ravel() * self.patch_size, y.ravel() * self.patch_size, np.ones(x.size)], axis=-1)

    def locate(self, points: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the patch ``(...)`` whose cell holds each point ``(..., 2)``; -1 outside the frame."""
        # Points a rounding error before an edge belong to the next cell.
        cell = np.floor(points / self.patch_size + _TOLERANCE)
        column, row = cell[..., 0], cell[..., 1]
        inside = (column >= 0) & (column < self.columns) & (row >= 0) & (row < self.rows)
        return np.where(inside, row * self.columns + column, -1).astype(np.int64)


def identity() -> Map:
    """Return the map that moves nothing."""
    return np.eye(3)


def translation(x: float, y: float) -> Map:
    """Return the map ``(u, v) -> (u + x, v + y)``."""
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def scaling(x: float, y: float) -> Map:
    """Return the map ``(u, v) -> (x u, y v)``."""
    return np.diag([x, y, 1.0])


def rotation(degrees: float) -> Map:
    """Return the rotation about the origin; positive turns the x axis towards the y axis (clockwise on screen)."""
    radians = np.deg2rad(degrees)
    cos, sin = np.cos(radians), np.sin(radians)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def shearing(x: float, y: float) -> Map:
    """Return the map ``(u, v) -> (u + x v, v + y u)``."""
    return np.array([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]])


def horizontal_flip(width: float) -> Map:
    """Return the mirror of a frame of ``width`` pixels: ``u -> width - u``."""
    return np.array([[-1.0, 0.0, width], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def around(matrix: Map, x: float, y: float) -> Map:
    """Return ``matrix`` acting about the point ``(x, y)`` instead of the origin."""
    return translation(x, y) @ matrix @ translation(-x, -y)


def crop(x: float, y: float, width: float, height: float, size: int, *, flip: bool = False) -> Map:
    """Return the ``to_source`` map of a crop of the source that was resized to ``size`` x ``size``."""
    # From right to left: flip in the view, scale to the crop, then move to its corner.
    to_source = translation(x, y) @ scaling(width / size, height / size)
    return to_source @ horizontal_flip(size) if flip else to_source


def apply(matrix: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map points ``(..., P, 3)`` by matrices ``(..., 3, 3)``; returns ``(..., P, 2)`` after the projective division."""
    # Row vectors: the transposed matrix is on the right.
    mapped = points @ np.swapaxes(matrix, -1, -2)
    return mapped[..., :2] / mapped[..., 2:]


def inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the maps ``(..., 3, 3)`` that undo ``matrix``; one that flattens the plane is a ``LinAlgError``."""
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Correspondence:
    """Pairs of patches of two views that show the same piece of the source.

    ``reference[b, j]`` and ``view[b, j]`` are the two patches of pair ``j`` of image ``b``; both are -1 where there
    is no partner. There are P slots per image. ``view_first[b]`` tells that the view is view 1 of the paper (the
    one with the smaller source area), whose patches are the slots; where it is False that is the reference.
    """

    reference: NDArray[np.int64]
    view: NDArray[np.int64]
    view_first: NDArray[np.bool_]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which slots ``(B, P)`` hold a pair."""
        return self.reference >= 0


def source_area(to_source: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area of the source that one view pixel covers ``(...)``, for affine maps ``(..., 3, 3)``."""
    return np.abs(np.linalg.det(to_source[..., :2, :2]))


def correspond(
    reference_to_source: NDArray[np.float64],
    view_to_source: NDArray[np.float64],
    *,
    grid: PatchGrid,
    source_size: NDArray[np.float64],
) -> Correspondence:
    """Find the corresponding patches of two views of the same images.

    Every patch center of view 1 is mapped view 1 -> source -> view 2; its partner is the patch of view 2 whose cell
    holds the point. View 1 is the view with the smaller source area, the reference where the areas are equal.

    Args:
        reference_to_source: maps ``(B, 3, 3)`` of the reference view.
        view_to_source: maps ``(B, 3, 3)`` of the other view.
        grid: the patches of either view.
        source_size: width and height ``(B, 2)`` of the source images in pixels.

    Returns:
        The pairs; -1 where the point falls outside the frame of view 2 or outside the source image (padding is no
        content).
    """
    # Areas within rounding are equal, and then the reference is view 1.
    view_first = source_area(view_to_source) < source_area(reference_to_source) * (1 - _TOLERANCE)
    first, second = _maps_by_view(reference_to_source, view_to_source, view_first)
    in_source = apply(first, grid.centers())
    on_content = (in_source >= -_TOLERANCE) & (in_source < source_size[:, None, :] - _TOLERANCE)
    homogeneous = np.concatenate([in_source, np.ones_like(in_source[..., :1])], axis=-1)
    partner = grid.locate(apply(inverse(second), homogeneous))
    return _pair_patches(np.where(on_content.all(-1), partner, -1), view_first)


def correspond_displaced(displacement: NDArray[np.float32], *, grid: PatchGrid) -> Correspondence:
    """Find the corresponding patches where it is given how pixels are displaced; the reference is view 1.

    Args:
        displacement: ``(B, S, S, 2)`` by how much what each pixel of the reference shows is further to the right and
            down in the other view; not-a-number where it is hidden there or not known.
        grid: the patches of either view.

    Returns:
        The pairs; -1 where the center of a patch is nowhere in the other view.
    """
    points = displaced_centers(displacement, grid)
    is_visible = np.isfinite(points).all(-1, keepdims=True)
    partner = grid.locate(np.where(is_visible, points, -1.0))
    return _pair_patches(partner, np.zeros(len(displacement), dtype=bool))


def displaced_centers(displacement: NDArray[np.float32], grid: PatchGrid) -> NDArray[np.float64]:
    """Return where the centers of the reference's patches are in the other view ``(B, P, 2)``.

    Args:
        displacement: as of ``correspond_displaced``.
        grid: the patches.
    """
    centers = grid.centers()[:, :2]
    column, row = np.floor(centers).astype(np.int64).T
    return centers + displacement[:, row, column].astype(np.float64)


def correspond_released(
    reference_to_source: NDArray[np.float64],
    view_to_source: NDArray[np.float64],
    *,
    grid: PatchGrid,
    crop_areas: NDArray[np.float64] | NDArray[np.int64] | None = None,
    num_prefix_tokens: int = 0,
    class_pair: bool = False,
) -> Correspondence:
    """Find the corresponding patches by the rules of the code that PRC's authors released.

    It differs from ``correspond`` in three rules: a point outside the source (padding) still counts; views of equal
    area are swapped (the second is view 1); a point exactly on the upper or the left edge of view 2 is outside.

    Args:
        reference_to_source: maps ``(B, 3, 3)`` of the first view.
        view_to_source: maps ``(B, 3, 3)`` of the second view.
        grid: the patches of either view.
        crop_areas: height x width ``(B, 2)`` of the crops of the first and the second view in source pixels; None
            reads them off the maps.
        num_prefix_tokens: added to every patch number, so that the numbers are positions in the token sequence.
        class_pair: append a slot that pairs token 0 with token 0.

    Returns:
        The pairs, P slots (one more with ``class_pair``); -1 where the point falls outside the frame of view 2.
    """
    if class_pair and num_prefix_tokens == 0:
        raise ValueError("A class pair needs a prefix: without one, token 0 is a patch.")
    if crop_areas is None:
        crop_areas = np.stack([source_area(reference_to_source), source_area(view_to_source)], axis=-1)
    view_first = crop_areas[:, 1] <= crop_areas[:, 0] * (1 + _TOLERANCE)
    first, second = _maps_by_view(reference_to_source, view_to_source, view_first)
    points = apply(inverse(second) @ first, grid.centers())
    beyond_edge = (points > _TOLERANCE * grid.patch_size).all(-1)
    pairs = _pair_patches(np.where(beyond_edge, grid.locate(points), -1), view_first)
    return _as_tokens(pairs, num_prefix_tokens, class_pair=class_pair)


def _maps_by_view(
    reference: NDArray[np.float64], view: NDArray[np.float64], view_first: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the maps ``(B, 3, 3)`` of view 1 and of view 2."""
    swap = view_first[:, None, None]
    return np.where(swap, view, reference), np.where(swap, reference, view)


def _pair_patches(partner: NDArray[np.int64], view_first: NDArray[np.bool_]) -> Correspondence:
    """Return the pairs of view 1's patches with their partners ``(B, P)`` in view 2 (-1 = none)."""
    slots = np.where(partner >= 0, np.arange(partner.shape[-1]), -1)
    swap = view_first[:, None]
    return Correspondence(
        reference=np.where(swap, partner, slots), view=np.where(swap, slots, partner), view_first=view_first
    )


def _as_tokens(pairs: Correspondence, num_prefix_tokens: int, *, class_pair: bool) -> Correspondence:
    """Return the pairs as positions in the token sequence, with token 0 paired with itself if wanted."""

    def tokens(patches: NDArray[np.int64]) -> NDArray[np.int64]:
        shifted = np.where(patches >= 0, patches + num_prefix_tokens, -1)
        return np.pad(shifted, ((0, 0), (0, int(class_pair))))

    return Correspondence(tokens(pairs.reference), tokens(pairs.view), pairs.view_first)
