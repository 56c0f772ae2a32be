"""What a view is: pixels, and the map that says where each of them came from.

A view acts on the *source*, the image as the data set gives it (RGB, 8 bits, any size), and resamples it once to the
model's input. Its random numbers come from the generator it is handed; library functions only resample.

Where in the chain it acts: pixels are in [0, 1], *before* the model's normalisation, which is inside the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from moeprobe import geometry
from moeprobe.errors import UserError
from moeprobe.geometry import Map
from moeprobe.views._resample import render


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

    def to_source(self, image: Image.Image) -> Map:
        """Return the map of the clean view of ``image``."""
        width, height = image.size
        if self.crop_fraction is None:
            return geometry.crop(0, 0, width, height, self.size)
        side = self.crop_fraction * min(width, height)
        return geometry.crop((width - side) / 2, (height - side) / 2, side, side, self.size)

    def described(self) -> str:
        """Return in words what a model is given."""
        shown = (
            "the whole image, squashed"
            if self.crop_fraction is None
            else f"the central square of {self.crop_fraction:g} of the shorter side"
        )
        return f"RGB in [0, 1], {self.size} x {self.size} pixels, {shown}"

    def clean(self, image: Image.Image) -> Sample:
        """Return the clean view of ``image``."""
        return sample(image, self.to_source(image), self.size)


def sample(image: Image.Image, to_source: Map, size: int) -> Sample:
    """Return the view of ``image`` that ``to_source`` describes; what lies outside the source is filled with grey."""
    return Sample(to_tensor(render(image, to_source, size)), to_source)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an RGB image as a float32 tensor ``(3, H, W)`` in [0, 1]."""
    array = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255.0
    return torch.from_numpy(np.ascontiguousarray(array))


def check_severities(severities: Sequence[float], *, low: float, high: float, what: str) -> None:
    """Raise ``UserError`` unless every severity lies in ``[low, high]`` (not-a-number never does)."""
    for severity in severities:
        if not low <= severity <= high:
            bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
            raise UserError(f"{what} must be {bounds}; got {severity}.")


class View:
    """A family of perturbations; a frozen dataclass whose fields are its parameters.

    Attributes:
        aligned: the patch grid never moves, so patch p of one view always corresponds to patch p of the other.
        random: two draws of the same image differ.
    """

    aligned: ClassVar[bool] = False
    random: ClassVar[bool] = True


class SeverityView(View, ABC):
    """A view that grows with a severity and is compared with the clean image.

    Attributes:
        severities: the default steps of a sweep, starting at the severity that changes nothing.
        unit: what a severity is measured in.
    """

    severities: ClassVar[tuple[float, ...]]
    unit: ClassVar[str]

    @abstractmethod
    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` at each severity, all from *one* draw, so that a sweep is nested along its severities.

        Raises:
            UserError: a severity is out of range.
        """


class PairView(View, ABC):
    """A view that yields two random versions of one image, to be compared with each other (or trained on)."""

    @abstractmethod
    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return two random views of ``image``."""
