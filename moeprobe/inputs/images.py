"""An image as a model sees it: pixels, and the map that says where each came from; one resampling, by Pillow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.runtime.caching import cache_last

if TYPE_CHECKING:
    import torch


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
        # A negative scale is a mirrored crop, which a box cannot express.
        return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if to_source[0, 0] < 0 else view
    image, to_source = _reduce(image, to_source)
    # Pillow evaluates the coefficients at pixel centers, which is the convention of geometry.py.
    coefficients = tuple(float(value) for value in to_source[:2].ravel())
    return image.transform(
        (size, size), Image.Transform.AFFINE, coefficients, resample=Image.Resampling.BILINEAR, fillcolor=fill
    )


def _reduce(image: Image.Image, to_source: Map) -> tuple[Image.Image, Map]:
    """Return the image reduced so far that a view pixel steps over at most one of its pixels on either axis."""
    # How far one view pixel steps over the source, by axis.
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
    # Rotated or sheared views are no rectangle.
    if (
        abs(to_source[0, 1]) > _AXIS_TOLERANCE
        or abs(to_source[1, 0]) > _AXIS_TOLERANCE
        or to_source[1, 1] <= 0
    ):
        return None
    corners = geometry.apply(to_source, np.array([[0.0, 0.0, 1.0], [size, size, 1.0]]))
    (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
    inside = (
        left >= -_AXIS_TOLERANCE
        and top >= -_AXIS_TOLERANCE
        and right <= image.width + _AXIS_TOLERANCE
        and bottom <= image.height + _AXIS_TOLERANCE
    )
    if not inside:
        return None
    # Within the tolerance the box may lie a hair outside, which Pillow refuses.
    return max(0.0, left), max(0.0, top), min(float(image.width), right), min(float(image.height), bottom)


@dataclass(frozen=True, eq=False)
class Sample:
    """One view of one image.

    Attributes:
        pixels: ``(3, size, size)`` float32 in [0, 1].
        to_source: map from the view to the source.
        displacement: ``(size, size, 2)`` float32, by how much what each pixel of the first view shows is further to the
            right and down in this one; not-a-number where it is nowhere. None where both maps tell.
    """

    pixels: torch.Tensor
    to_source: Map
    displacement: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Framing:
    """How an image is brought to the model's input when nothing is perturbed.

    ``crop_fraction`` None squashes the whole image into the square; otherwise the central square of ``crop_fraction``
    x the shorter side is taken (224 of 256 pixels = 0.875), resized in one step.
    """

    size: int
    crop_fraction: float | None = None

    modality: ClassVar[Modality] = IMAGE

    def to_source(self, image: Image.Image) -> Map:
        """Return the map of the clean view of ``image``."""
        width, height = image.size
        # Squashed: both axes are scaled by themselves.
        if self.crop_fraction is None:
            return geometry.crop(0, 0, width, height, self.size)
        side = self.crop_fraction * min(width, height)
        return geometry.crop((width - side) / 2, (height - side) / 2, side, side, self.size)

    def describe(self) -> str:
        """Return in words what a model is given."""
        extent = (
            "the whole image, squashed"
            if self.crop_fraction is None
            else f"the central square of {self.crop_fraction:g} of the shorter side"
        )
        return f"RGB in [0, 1], {self.size} x {self.size} pixels, {extent}"

    def clean(self, image: Image.Image) -> Sample:
        """Return the clean view of ``image``."""
        # A view may write into its pixels, which the next draw needs as they were.
        kept = self._clean(image)
        return Sample(kept.pixels.clone(), kept.to_source.copy())

    # A view asks for it once per draw, and resizing takes longer than the noise.
    @cache_last
    def _clean(self, image: Image.Image) -> Sample:
        return sample(image, self.to_source(image), self.size)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: a loader process needs no image of this one."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def blank(self) -> torch.Tensor:
        """Return a black image as a batch, to learn of what kind a model's routing is."""
        import torch

        return torch.zeros(1, 3, self.size, self.size)


def sample(image: Image.Image, to_source: Map, size: int) -> Sample:
    """Return the view of ``image`` that ``to_source`` describes; pixels outside the source are gray."""
    return Sample(to_tensor(render(image, to_source, size)), to_source)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an RGB image as a float32 tensor ``(3, H, W)`` in [0, 1]."""
    import torch

    array = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255.0
    return torch.from_numpy(np.ascontiguousarray(array))
