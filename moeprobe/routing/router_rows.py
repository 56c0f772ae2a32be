"""The rows by which a router scores experts, and how they are drawn before training.

Axes: R rows (one for each expert; of a soft router, one for each slot), D width of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# A normal distribution that is cut off lies within this many of its own standard deviations.
_CUT = 2.0
_CUT_STD = 0.87962566103423978


@dataclass(frozen=True)
class Start:
    """How the numbers of an untrained router are drawn, each by itself and around 0.

    Attributes:
        law: the distribution; "cut normal" has nothing beyond two standard deviations of the normal one.
        std: the standard deviation.
        is_known: whether the model says so; otherwise it is what a linear layer of torch starts with.
    """

    law: Literal["normal", "cut normal", "uniform"]
    std: float
    is_known: bool = True

    @classmethod
    def lecun(cls, width: int) -> Start:
        """Return how V-MoE's router starts: of variance 1 / D."""
        return cls("cut normal", width**-0.5)

    @classmethod
    def of_linear(cls, width: int) -> Start:
        """Return how a linear layer of torch starts: uniform within 1 / √D."""
        return cls("uniform", (3 * width) ** -0.5, is_known=False)

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        """Return untrained rows ``(R, D)``."""
        if self.law == "normal":
            unit = rng.standard_normal(shape)
        elif self.law == "uniform":
            unit = rng.uniform(-1, 1, shape) * 3**0.5
        else:
            unit = rng.standard_normal(shape)
            while (is_cut := np.abs(unit) > _CUT).any():
                unit[is_cut] = rng.standard_normal(int(is_cut.sum()))
            unit /= _CUT_STD
        return self.std * unit


@dataclass(frozen=True)
class RouterRows:
    """What one router scores tokens with.

    Attributes:
        rows: ``(R, D)`` float64; the score of an expert is the product of its row with the token.
        start: how rows are drawn before training.
        bias: ``(R,)`` added to each expert's score; None = nothing.
        is_bias_of_gates: the bias is added to gates, which are within [0, 1], and serves the choice alone; otherwise
            it is added to the product.
        top_k: experts of a token; None where tokens do not choose, or choose among groups of experts first.
        is_choice_by_scores: the choice follows from the products, and would not change if all rows had a vector more;
            False where rows are normalized, where a bias is of gates, or where nothing is chosen.
        embedding: ``(N, D)`` vectors that put the input into the space of the tokens; None = not known, or the router
            reads tokens of another width.
    """

    rows: Array
    start: Start
    bias: Array | None = None
    is_bias_of_gates: bool = False
    top_k: int | None = None
    is_choice_by_scores: bool = True
    embedding: Array | None = None
