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

    Ten tokens. Expert 0 of the first model has 4 in common with expert 1 of the second, expert 1 has 3 with expert 2,
    and expert 2 has 2 with expert 0: 9 of 10. By chance 4 · 4 + 4 · 3 + 2 · 3 of 100, so κ = (0.9 − 0.34) / (1 − 0.34):

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.alignment import JointCounts
    >>> common = np.array([[0, 4, 0], [1, 0, 3], [2, 0, 0]])
    >>> counts = JointCounts(common, first=common.sum(1), second=common.sum(0), tokens=10)
    >>> counts.align().tolist(), round(counts.kappa(counts.align()), 3)
    ([2, 0, 1], 0.848)

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


class ReorderedInputs:
    """Counts of two models' sets, the second's inputs in any order.

    A null takes hundreds of orders. Where tokens have about as many experts, each expert of theirs is a column of
    numbers, and pairs of columns are counted: several times as fast as a product of sparse rows.

    Args:
        first: sparse rows of 0 and 1, as ``joint_counts`` takes them, input by input.
        second: the same of the second model.
        inputs: n, each of as many rows.
    """

    def __init__(self, first: Any, second: Any, *, inputs: int) -> None:
        self._sparse = first, second
        self._shape = first.shape[1] - 1, second.shape[1] - 1
        self._inputs = inputs
        # Where few tokens have many experts, most numbers of the columns would stand for none.
        self._columns = (
            None if _is_ragged(first) or _is_ragged(second) else tuple(map(self._as_columns, (first, second)))
        )

    def joint_counts(self, order: Numbers) -> JointCounts:
        """Return the counts with the second model's inputs in an order ``(n,)``."""
        if self._columns is None:
            first, second = self._sparse
            num_places = first.shape[0] // self._inputs
            rows = (order[:, None] * num_places + np.arange(num_places)).ravel()
            return joint_counts(first, second[rows])
        (num_first, num_second), (of_first, of_second) = self._shape, self._columns
        common = np.zeros(self._shape, np.int64)
        alone_first, alone_second, tokens = np.zeros(num_first, np.int64), np.zeros(num_second, np.int64), 0
        for column, experts in enumerate(of_second):
            permuted = experts[order]
            for beside, rows_of in enumerate(of_first):
                codes = rows_of * (num_second + 2) + permuted
                counts = np.bincount(codes.ravel(), minlength=(num_first + 2) * (num_second + 2))
                counts = counts.reshape(num_first + 2, num_second + 2)[:-1, :-1]
                common += counts[:-1, :-1]
                # A token counts once: by the first of the other's columns.
                alone_first += counts[:-1].sum(1) if not column else 0
                alone_second += counts[:, :-1].sum(0) if not beside else 0
                tokens += 0 if column or beside else int(counts.sum())
        return JointCounts(common, alone_first, alone_second, tokens)

    def _as_columns(self, rows: Any) -> list[Numbers]:
        """Return the experts of the tokens ``(n, P)``, one by one; E = no more, E + 1 = the model lacks the token."""
        num_experts, row_sizes = rows.shape[1] - 1, np.diff(rows.indptr)
        columns = []
        for column in range(max(int(row_sizes.max(initial=1)) - 1, 1)):
            experts = np.where(row_sizes > 0, num_experts, num_experts + 1)
            has = row_sizes > column + 1
            experts[has] = rows.indices[rows.indptr[:-1][has] + column]
            columns.append(experts.reshape(self._inputs, -1))
        return columns


def _is_ragged(rows: Any) -> bool:
    """Whether tokens have fewer than half as many experts as the one with most, on average."""
    row_sizes = np.diff(rows.indptr) - 1
    return bool(row_sizes.max(initial=0) > 1 and row_sizes[row_sizes >= 0].mean() < row_sizes.max() / 2)


def permuted_orders(clusters: Numbers, rng: np.random.Generator, count: int) -> Iterator[Numbers]:
    """Yield ``count`` random orders ``(n,)`` of inputs; inputs of one cluster stay together."""
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    parts = np.split(np.arange(len(clusters)), starts[1:])
    for _ in range(count):
        yield np.concatenate([parts[number] for number in rng.permutation(len(parts))])
