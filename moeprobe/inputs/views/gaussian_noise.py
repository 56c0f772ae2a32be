"""Independent Gaussian noise on every pixel and channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import STANDARD_DEVIATION, Amounts, SeverityView


@dataclass(frozen=True)
class GaussianNoise(SeverityView):
    """Gaussian noise of standard deviation sigma, in units of the [0, 1] pixel range, before normalization.

    One unit draw per image at the model's input resolution, scaled by sigma, so noise is nested along a sweep.
    ``clip`` cuts the result back to [0, 1], as a stored image would.
    """

    clip: bool = True

    aligned: ClassVar[bool] = True
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
    unit: ClassVar[str] = "noise σ, in units of the [0, 1] pixel range"
    amounts: ClassVar[Amounts] = STANDARD_DEVIATION

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` with each amount of noise."""
        import torch

        self.check(severities)
        clean = framing.clean(image)
        unit = torch.from_numpy(rng.standard_normal(tuple(clean.pixels.shape), dtype=np.float32))
        noisy = [(severity * unit).add_(clean.pixels) for severity in severities]
        return [Sample(pixels.clamp_(0, 1) if self.clip else pixels, clean.to_source) for pixels in noisy]
