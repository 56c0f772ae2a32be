"""What a view is: pixels, and the map that says where each of them came from (of texts: ``_text``).

A view acts on the *source*, the image as the data set gives it (RGB, 8 bits, any size), and resamples it once to the
model's input. Its random numbers come from the generator it is handed; library functions only resample.

Where in the chain it acts: pixels are in [0, 1], *before* the model's normalisation, which is inside the model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from PIL import Image

from moeprobe import geometry
from moeprobe.errors import UserError
from moeprobe.geometry import Map
from moeprobe.medium import IMAGE, Medium
from moeprobe.views._resample import render

# What a view acts on, how that is brought to a model's input, and what comes out.
Source = TypeVar("Source")
Frame = TypeVar("Frame")
Made = TypeVar("Made")


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

    medium: ClassVar[Medium] = IMAGE

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

    def blank(self) -> torch.Tensor:
        """Return a black image as a batch, to learn of what kind a model's routing is."""
        return torch.zeros(1, 3, self.size, self.size)


def sample(image: Image.Image, to_source: Map, size: int) -> Sample:
    """Return the view of ``image`` that ``to_source`` describes; what lies outside the source is filled with grey."""
    return Sample(to_tensor(render(image, to_source, size)), to_source)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return an RGB image as a float32 tensor ``(3, H, W)`` in [0, 1]."""
    array = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255.0
    return torch.from_numpy(np.ascontiguousarray(array))


def check_severities(severities: Sequence[float], *, low: float, high: float, what: str) -> None:
    """Raise ``UserError`` unless every severity lies in ``[low, high]`` (not-a-number and infinity never do)."""
    for severity in severities:
        if not (low <= severity <= high and math.isfinite(severity)):
            bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
            raise UserError(f"{what} must be {bounds}; got {severity}.")


class View:
    """A family of perturbations; a frozen dataclass whose fields are its parameters.

    Attributes:
        medium: what it perturbs.
        aligned: the patch grid never moves, so patch p of one view always corresponds to patch p of the other.
        random: two draws of the same image differ.
    """

    medium: ClassVar[Medium] = IMAGE
    aligned: ClassVar[bool] = False
    random: ClassVar[bool] = True


class SeverityView(View, ABC, Generic[Source, Frame, Made]):
    """A view that grows with a severity and is compared with the clean image (or text).

    Attributes:
        severities: the default steps of a sweep, starting at the severity that changes nothing.
        unit: what a severity is measured in.
    """

    severities: ClassVar[tuple[float, ...]]
    unit: ClassVar[str]

    @abstractmethod
    def perturb(
        self, source: Source, *, framing: Frame, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Made]:
        """Return ``source`` at each severity, all from *one* draw, so that a sweep is nested along its severities.

        Raises:
            UserError: a severity is out of range.
        """


class PairView(View, ABC, Generic[Source, Frame, Made]):
    """A view that yields two random versions of one image (or text), to be compared with each other (or trained on)."""

    @abstractmethod
    def pair(self, source: Source, *, framing: Frame, rng: np.random.Generator) -> tuple[Made, Made]:
        """Return two random views of ``source``."""
