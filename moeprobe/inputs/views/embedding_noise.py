"""Independent Gaussian noise on the embedding of every token of a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from moeprobe.inputs.texts import TextFraming, TextSample
from moeprobe.inputs.views.base import STANDARD_DEVIATION, Amounts
from moeprobe.inputs.views.text import TextView


@dataclass(frozen=True)
class EmbeddingNoise(TextView):
    """Gaussian noise of standard deviation sigma, in units of the root mean square of all of the model's embeddings.

    One unit draw per text, scaled by sigma, so noise is nested along a sweep. The model adds it to what its embedding
    gives for the text's tokens; special tokens get none.
    """

    aligned: ClassVar[bool] = True
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
    unit: ClassVar[str] = "noise σ, in units of the embeddings' root mean square"
    amounts: ClassVar[Amounts] = STANDARD_DEVIATION

    def perturb(
        self, source: str, *, framing: TextFraming, severities: Sequence[float], rng: np.random.Generator
    ) -> list[TextSample]:
        """Return ``source`` with each amount of noise."""
        import torch

        self.check(severities)
        clean = framing.clean(source)
        noise = torch.from_numpy(rng.standard_normal((len(clean.ids), framing.width), dtype=np.float32))
        noise[torch.from_numpy(clean.special)] = 0
        return [replace(clean, noise=noise, sigma=severity) for severity in severities]
