"""Random crops in the manner of Inception, and the views that are a pair of them.

Source: Szegedy et al., "Going deeper with convolutions", section 6 (area and aspect ratio drawn at random); the ranges
come from V-MoE's and PRC's training.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Framing, Sample, sample
from moeprobe.inputs.views.base import PairView

Range = tuple[float, float]
# Width over height, as in the TensorFlow operation that V-MoE and PRC crop with.
ASPECT: Range = (3 / 4, 4 / 3)


def draw_box(
    width: float, height: float, *, area: Range, aspect: Range, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """Draw a rectangle inside a ``width`` x ``height`` image: left, top, width, height in pixels, not rounded.

    The area is uniform in ``area`` (shares of the image), the aspect ratio (width / height) log-uniform over the
    part of ``aspect`` with which that area fits, the place uniform. Where the area fits with no such aspect ratio
    (a large share of an elongated image), the nearest one that fits is taken: the rectangle spans the shorter side.

    So nothing is drawn in vain: four numbers are used up each time, and the area keeps its distribution. (The released
    programs draw the aspect ratio first and the height uniformly, in whole pixels, and take the whole image when a
    hundred attempts fail.)
    """
    draws = rng.random(4)
    pixels = (area[0] + (area[1] - area[0]) * draws[0]) * width * height
    narrowest, widest = pixels / height**2, width**2 / pixels
    low, high = max(aspect[0], narrowest), min(aspect[1], widest)
    nearest = narrowest if narrowest > aspect[1] else widest
    ratio = low * (high / low) ** draws[1] if low <= high else nearest
    box_width = min(math.sqrt(pixels * ratio), width)
    box_height = min(math.sqrt(pixels / ratio), height)
    return (width - box_width) * draws[2], (height - box_height) * draws[3], box_width, box_height


def draw_crop(
    image: Image.Image, *, size: int, area: Range, aspect: Range, flip: bool, rng: np.random.Generator
) -> Map:
    """Draw a crop of ``image``, mirrored with probability one half if ``flip``; returns its ``to_source`` map."""
    box = draw_box(*image.size, area=area, aspect=aspect, rng=rng)
    # Drawn whether or not it is used: the crops are the same with and without mirroring.
    mirrored = rng.random() < 0.5
    return geometry.crop(*box, size, flip=flip and bool(mirrored))


def check_ranges(*, aspect: Range, **areas: Range) -> None:
    """Raise ``UserError`` unless the areas are shares of an image and the aspect ratios positive, low to high."""
    for name, (low, high) in areas.items():
        if not 0 < low <= high <= 1:
            raise UserError(
                f"{name} must be two shares of the image, 0 < low <= high <= 1; got {low} and {high}."
            )
    if not 0 < aspect[0] <= aspect[1] < math.inf:
        raise UserError(f"aspect must be two positive ratios, low <= high; got {aspect[0]} and {aspect[1]}.")


@dataclass(frozen=True)
class CropPair(PairView):
    """Two independent crops of one image.

    ``first_area`` and ``second_area`` are the ranges of the crops' shares of the image, ``aspect`` is the range of
    width / height of either, ``flip`` lets each be mirrored with probability one half.
    """

    first_area: Range
    second_area: Range
    aspect: Range = ASPECT
    flip: bool = False

    def __post_init__(self) -> None:
        check_ranges(aspect=self.aspect, first_area=self.first_area, second_area=self.second_area)

    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return the two crops of ``image``, resized to the frame."""
        first = self._crop(image, self.first_area, framing, rng)
        return first, self._crop(image, self.second_area, framing, rng)

    def _crop(self, image: Image.Image, area: Range, framing: Framing, rng: np.random.Generator) -> Sample:
        to_source = draw_crop(
            image, size=framing.size, area=area, aspect=self.aspect, flip=self.flip, rng=rng
        )
        return sample(image, to_source, framing.size)
