"""A rotation of the whole image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing, Sample, sample
from moeprobe.inputs.views.base import Amounts, SeverityView


@dataclass(frozen=True)
class Rotation(SeverityView):
    """A rotation about the center of the clean view, left or right as drawn for the image.

    What comes from outside the source is gray and has no partner.
    """

    severities: ClassVar[tuple[float, ...]] = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0)
    unit: ClassVar[str] = "rotation in degrees"
    amounts: ClassVar[Amounts] = Amounts(0, 180, "An angle in degrees")

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` turned by each angle."""
        self.check(severities)
        sign = 1.0 if rng.random() < 0.5 else -1.0
        clean, center = framing.to_source(image), framing.size / 2
        turns = [geometry.around(geometry.rotation(sign * angle), center, center) for angle in severities]
        return [sample(image, clean @ turn, framing.size) for turn in turns]
