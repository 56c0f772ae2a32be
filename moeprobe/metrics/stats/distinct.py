"""Distinct experts of independent tokens, and how far fewer consecutive tokens use.

Axes: n sequences, E experts, R resamples.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.statistic import Array, Totals, divide


@dataclass(frozen=True)
class IndependentDistinct:
    """Σ_e 1 − (1 − p_e)^T: the distinct experts of T tokens that each have expert e with probability p_e.

    p_e is estimated from n sequences, and the curve bends down: the plain value is too low by about
    T (T − 1) / 2 · (1 − p_e)^(T − 2) times the variance of p_e over sequences, so that is added. A resample has
    fewer different sequences and is lower still: intervals are linearized.

    Attributes:
        loads: ``(n, E)`` tokens of the windows of a sequence that have each expert, divided by T.
        windows: ``(n,)``.
        size: T.
    """

    loads: Array
    windows: Array
    size: int
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        return self._read(tuple(column.T @ weights for column in self._columns))

    def totals(self) -> Totals:
        """Return the sums of loads and windows, of the squares and products of both, and the sequences with windows."""
        return self._sums

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all sequences."""
        return float(self._read(tuple(np.asarray(part)[..., None] for part in totals))[0])

    def plain_value(self, totals: Totals) -> float:
        """Return it without the correction for the variance of p_e."""
        loads, windows = totals[:2]
        return float((1 - (1 - divide(loads, windows)) ** self.size).sum())

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the plain value by each sequence's weight: the correction is of a higher order."""
        loads, windows = (self._sums if totals is None else totals)[:2]
        shares = divide(loads, windows)
        share_influence = divide(self.loads - shares * self.windows[:, None], windows)
        influence: Array = share_influence @ (self.size * (1 - shares) ** (self.size - 1))
        return influence

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return the score interval of its share of all experts, over ``images`` sequences."""
        share = self.value(self._sums if totals is None else totals) / self._num_experts
        low, high = proportions.score_interval(share, error / self._num_experts, images)
        return self._num_experts * low, self._num_experts * high

    def swing(self, totals: Totals | None) -> float:
        """Return the largest value, which a share of one comes to."""
        return self._num_experts

    def is_binary(self) -> bool:
        """Sequences are no trials of it."""
        return False

    @property
    def _num_experts(self) -> int:
        return self.loads.shape[1]

    @cached_property
    def _columns(self) -> tuple[Array, ...]:
        loads, windows = self.loads, self.windows
        number = (windows > 0).astype(np.float64)
        return loads, windows, loads**2, loads * windows[:, None], windows**2, number

    @cached_property
    def _sums(self) -> Totals:
        return tuple(column.sum(0) for column in self._columns)

    def _read(self, totals: Totals) -> Array:
        loads, windows, squares, products, squared_windows, number = totals
        shares, size = divide(loads, windows), self.size
        # The last bits of a sum of squares may be below 0. A single sequence has variance 0.
        off = np.maximum(squares - 2 * shares * products + shares**2 * squared_windows, 0.0)
        variance = divide(off, windows**2) * divide(number, number - 1, empty=1.0)
        missing = 1 - shares
        added = size * (size - 1) / 2 * missing ** max(size - 2, 0) * variance
        distinct: Array = (1 - missing**size + added).sum(0)
        return np.minimum(distinct, self._num_experts)


@dataclass(frozen=True)
class DistinctRatio:
    """The mean number of distinct experts in a window, divided by the number that independent tokens would use.

    Attributes:
        distinct: ``(n,)`` distinct experts of all windows of a sequence, added up.
        independent: what independent tokens use.
    """

    distinct: Array
    independent: IndependentDistinct
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        observed = divide(self.distinct @ weights, self.independent.windows @ weights)
        return divide(observed, self.independent.evaluate(weights))

    def totals(self) -> Totals:
        """Return the sum of the distinct experts and of the windows, and the totals of the other."""
        return np.array([self.distinct.sum(), self.independent.windows.sum()]), self.independent.totals()

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all sequences."""
        (distinct, windows), of_independent = totals
        return float(divide(divide(distinct, windows), self.independent.value(of_independent)))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (do − ratio · de) / e, with the plain value e of independent tokens, as their influence is of it."""
        totals = self.totals() if totals is None else totals
        (distinct, windows), of_independent = totals
        observed, expected = divide(distinct, windows), self.independent.plain_value(of_independent)
        of_observed = divide(self.distinct - observed * self.independent.windows, windows)
        of_expected = self.independent.influence(of_independent)
        return divide(of_observed - divide(observed, expected) * of_expected, expected)
