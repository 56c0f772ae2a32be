"""More or less light."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import Amounts, SeverityView


@dataclass(frozen=True)
class Brightness(SeverityView):
    """A constant added to all pixels or subtracted from them, as drawn for the image; clipped to [0, 1]."""

    aligned: ClassVar[bool] = True
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    unit: ClassVar[str] = "change of brightness, in units of the [0, 1] pixel range"
    amounts: ClassVar[Amounts] = Amounts(0, 1, "A change of brightness")

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` with each change of its brightness."""
        self.check(severities)
        sign = 1.0 if rng.random() < 0.5 else -1.0
        clean = framing.clean(image)
        return [Sample((clean.pixels + sign * change).clamp(0, 1), clean.to_source) for change in severities]
