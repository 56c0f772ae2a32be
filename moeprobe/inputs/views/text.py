"""What views of texts share: two versions as a pair, and words that are rewritten."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from moeprobe.inputs.modality import TEXT, Modality
from moeprobe.inputs.texts import Piece, TextFraming, TextSample, write
from moeprobe.inputs.views.base import Amounts, PairView, SeverityView


class TextView(SeverityView[str, TextFraming, TextSample], PairView[str, TextFraming, TextSample]):
    """A perturbation of a text that grows with the share of what it changes.

    As a pair it is two versions of a text, each with draws of its own and the share ``pair_share`` changed.

    Attributes:
        pair_share: of the two versions of a pair.
    """

    modality: ClassVar[Modality] = TEXT
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
    amounts: ClassVar[Amounts] = Amounts(0, 1, "A share of words")
    pair_share: ClassVar[float] = 0.1

    def pair(
        self, source: str, *, framing: TextFraming, rng: np.random.Generator
    ) -> tuple[TextSample, TextSample]:
        """Return two random versions of a text."""
        (first,), (second,) = (
            self.perturb(source, framing=framing, severities=[self.pair_share], rng=rng) for _ in range(2)
        )
        return first, second


class WordView(TextView, ABC):
    """A view that rewrites some words of a text."""

    @abstractmethod
    def words(self, text: str) -> list[tuple[int, int]]:
        """Return the positions of words that could be rewritten, ``(start, end)`` in their order."""

    @abstractmethod
    def rewrite(self, word: str, rng: np.random.Generator) -> list[Piece]:
        """Return the pieces of a rewritten word, their places counted from its start."""

    def perturb(
        self, source: str, *, framing: TextFraming, severities: Sequence[float], rng: np.random.Generator
    ) -> list[TextSample]:
        """Return ``source`` with each word rewritten with the probability of each severity.

        A word is changed once its own random number is below the severity, and then always in the same way: the
        changes of a weak severity are a subset of the changes of a stronger one.
        """
        self.check(severities)
        words = self.words(source)
        threshold = rng.random(len(words))
        rewritten = [self.rewrite(source[start:end], rng) for start, end in words]
        samples = []
        for severity in severities:
            pieces: list[Piece] = []
            copied = 0
            for (start, end), is_rewritten, written in zip(
                words, threshold < severity, rewritten, strict=True
            ):
                if is_rewritten:
                    pieces.append((source[copied:start], copied, start))
                    pieces += [(string, start + first, start + last) for string, first, last in written]
                    copied = end
            samples.append(framing.sample(write([*pieces, (source[copied:], copied, len(source))])))
        return samples
