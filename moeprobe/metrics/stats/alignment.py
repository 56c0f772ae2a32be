"""Which expert of one model does what which expert of another does: the best assignment by their common tokens.

Axes: E experts of the first model, F of the second, M tokens of a run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moeprobe.metrics.stats.kappa import room
from moeprobe.metrics.stats.statistic import divide

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class JointCounts:
    """How often the experts of two models have tokens, each by itself and together.

    Attributes:
        common: ``(E, F)`` tokens that expert e of the first and expert f of the second have.
        first: ``(E,)`` tokens of each expert of the first model.
        second: ``(F,)`` tokens of each expert of the second.
        tokens: all tokens, whoever has them.
    """

    common: Numbers
    first: Numbers
    second: Numbers
    tokens: int

    def __add__(self, added: "JointCounts") -> "JointCounts":
        return JointCounts(
            self.common + added.common,
            self.first + added.first,
            self.second + added.second,
            self.tokens + added.tokens,
        )

    def align(self) -> Numbers:
        """Return new numbers of the second model's experts ``(F,)``: of the first's experts with most common tokens.

        The assignment is one to one (Kuhn 1955). Experts of a larger second model that are left over have numbers
        from E on.
        """
        num_first, num_second = self.common.shape
        rows, columns = linear_sum_assignment(self.common, maximize=True)
        numbers = np.full(num_second, -1)
        numbers[columns] = rows
        numbers[numbers < 0] = num_first + np.arange(num_second - len(columns))
        return numbers

    def kappa(self, numbers: Numbers) -> float:
        """Return κ of the overlap of the tokens' experts under such numbers; NaN where chance is 1.

        The overlap is the share of the first model's choices that the second has, too. By chance it is what
        independent models with these loads have.
        """
        old = np.flatnonzero(numbers < len(self.first))
        new, had = numbers[old], float(self.first.sum())
        overlap = divide(float(self.common[new, old].sum()), had)
        by_chance = float(self.first[new].astype(float) @ self.second[old])
        chance = divide(by_chance, had * self.tokens)
        return float(divide(overlap - chance, room(chance)))


def joint_counts(first: Any, second: Any) -> JointCounts:
    """Return the counts of two models' sets: sparse rows of 0 and 1, ``(M, E + 1)`` and ``(M, F + 1)``.

    The last column of either is 1 where the model has the token at all; others are left out.
    """
    counts = (first.T @ second).toarray().astype(np.int64)
    return JointCounts(counts[:-1, :-1], counts[:-1, -1], counts[-1, :-1], int(counts[-1, -1]))


def permuted_orders(clusters: Numbers, rng: np.random.Generator, count: int) -> Iterator[Numbers]:
    """Yield ``count`` random orders ``(n,)`` of inputs; inputs of one cluster stay together."""
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    parts = np.split(np.arange(len(clusters)), starts[1:])
    for _ in range(count):
        yield np.concatenate([parts[number] for number in rng.permutation(len(parts))])
