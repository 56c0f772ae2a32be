"""An image as a model sees it: pixels, and the map that says where each of them came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.inputs.resample import render

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Sample:
    """One view of one image: pixels ``(3, size, size)`` float32 in [0, 1], and the map from them to the source."""

    pixels: torch.Tensor
    to_source: Map


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
        if self.crop_fraction is None:
            return geometry.crop(0, 0, width, height, self.size)
        side = self.crop_fraction * min(width, height)
        return geometry.crop((width - side) / 2, (height - side) / 2, side, side, self.size)

    def described(self) -> str:
        """Return in words what a model is given."""
        extent = (
            "the whole image, squashed"
            if self.crop_fraction is None
            else f"the central square of {self.crop_fraction:g} of the shorter side"
        )
        return f"RGB in [0, 1], {self.size} x {self.size} pixels, {extent}"

    def clean(self, image: Image.Image) -> Sample:
        """Return the clean view of ``image``."""
        return sample(image, self.to_source(image), self.size)

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
