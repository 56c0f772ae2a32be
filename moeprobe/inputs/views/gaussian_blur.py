"""Blur."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image
from scipy import ndimage

from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import Amounts, SeverityView

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GaussianBlur(SeverityView):
    """A Gaussian blur of standard deviation sigma, in pixels of the model's input; edges are repeated outwards."""

    aligned: ClassVar[bool] = True
    random: ClassVar[bool] = False
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
    unit: ClassVar[str] = "blur σ, in pixels of the model's input"
    amounts: ClassVar[Amounts] = Amounts(0, float("inf"), "The sigma of a blur")

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` blurred by each amount; nothing is drawn."""
        replace(self.amounts, high=framing.size).check(severities)
        clean = framing.clean(image)
        return [Sample(_blur(clean.pixels, sigma), clean.to_source) for sigma in severities]


def _blur(pixels: "torch.Tensor", sigma: float) -> "torch.Tensor":
    import torch

    if sigma == 0:
        return pixels
    blurred = ndimage.gaussian_filter(pixels.numpy(), sigma=(0, sigma, sigma), mode="nearest")
    return torch.from_numpy(blurred.clip(0, 1))
