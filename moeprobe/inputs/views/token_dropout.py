"""Some tokens of a text left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.inputs.texts import TextFraming, TextSample
from moeprobe.inputs.views.base import Amounts
from moeprobe.inputs.views.text import TextView


@dataclass(frozen=True)
class TokenDropout(TextView):
    """A share of the tokens left out; the others close the gaps.

    Each token is dropped with the probability of the severity; a stronger severity also drops all tokens of a weaker
    one. Special tokens stay, and at least one other token. A token that is gone has no partner.
    """

    unit: ClassVar[str] = "token_dropout: share of tokens left out"
    amounts: ClassVar[Amounts] = Amounts(0, 1, "A share of tokens")

    def perturb(
        self, source: str, *, framing: TextFraming, severities: Sequence[float], rng: np.random.Generator
    ) -> list[TextSample]:
        """Return ``source`` without a share of its tokens."""
        self.check(severities)
        clean = framing.clean(source)
        threshold = rng.random(len(clean.ids))
        last = np.where(clean.special, -1.0, threshold).argmax()
        stays = clean.special | (np.arange(len(clean.ids)) == last)
        return [clean.keep((threshold >= severity) | stays) for severity in severities]
