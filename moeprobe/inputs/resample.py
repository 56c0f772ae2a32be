"""One resampling from the source image to a view, by Pillow; the maps are ours."""

import numpy as np
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map

FILL = (128, 128, 128)
_AXIS_TOLERANCE = 1e-9


def render(
    image: Image.Image, to_source: Map, size: int, *, fill: tuple[int, int, int] = FILL
) -> Image.Image:
    """Return the ``size`` x ``size`` view of an RGB ``image`` that the affine map ``to_source`` describes.

    A crop inside the source (mirrored or not) is one antialiased resize. Anything else is one bilinear warp; along
    an axis on which that would shrink the source, the source is first reduced with antialiasing, since a warp alone
    would alias. A view pixel whose center is outside the source is ``fill``.
    """
    box = _crop_box(to_source, image, size)
    if box is not None:
        view = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if to_source[0, 0] < 0 else view
    image, to_source = _reduce(image, to_source)
    # Pillow evaluates the coefficients at pixel centers, which is the convention of geometry.py.
    coefficients = tuple(float(value) for value in to_source[:2].ravel())
    return image.transform(
        (size, size), Image.Transform.AFFINE, coefficients, resample=Image.Resampling.BILINEAR, fillcolor=fill
    )


def _reduce(image: Image.Image, to_source: Map) -> tuple[Image.Image, Map]:
    """Return the image reduced so far that a view pixel steps over at most one of its pixels on either axis."""
    steps = np.linalg.norm(to_source[:2, :2], axis=1)
    width, height = (
        max(1, round(length / max(1.0, float(step)))) for length, step in zip(image.size, steps, strict=True)
    )
    if (width, height) == image.size:
        return image, to_source
    reduction = geometry.scaling(width / image.width, height / image.height)
    return image.resize((width, height), Image.Resampling.BILINEAR), reduction @ to_source


def _crop_box(to_source: Map, image: Image.Image, size: int) -> tuple[float, float, float, float] | None:
    """Return left, top, right, bottom of an upright (perhaps mirrored) rectangle inside the source; else None."""
    if (
        abs(to_source[0, 1]) > _AXIS_TOLERANCE
        or abs(to_source[1, 0]) > _AXIS_TOLERANCE
        or to_source[1, 1] <= 0
    ):
        return None
    left, top, right, bottom = _box(to_source, size)
    inside = (
        left >= -_AXIS_TOLERANCE
        and top >= -_AXIS_TOLERANCE
        and right <= image.width + _AXIS_TOLERANCE
        and bottom <= image.height + _AXIS_TOLERANCE
    )
    if not inside:
        return None
    return max(0.0, left), max(0.0, top), min(float(image.width), right), min(float(image.height), bottom)


def _box(to_source: Map, size: int) -> tuple[float, float, float, float]:
    corners = geometry.apply(to_source, np.array([[0.0, 0.0, 1.0], [size, size, 1.0]]))
    (left, top), (right, bottom) = corners.min(0), corners.max(0)
    return float(left), float(top), float(right), float(bottom)
