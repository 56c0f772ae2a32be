"""Tokens until every expert has n of them: in random orders of inputs, of an even router, and in a small subset.

Axes: n inputs (images, texts, requests), X experts of all layers, O orders, G grid points.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers
from moeprobe.runtime.seeds import generator

ORDERS = 200
# The ends of a range that holds 95 % of the orders.
ENDS = (0.025, 0.975)
# Sums of counts that are in memory at a time.
_SUMS = 2**22
_MOST_TOKENS = 2**40
Counts = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Orders:
    """Inputs in random orders.

    Attributes:
        tokens: ``(O, n)`` tokens after each input.
        reached: ``(O, X)`` number of the input, from 0 on, at which an expert has enough; n = never.
    """

    tokens: Integers
    reached: NDArray[np.int64]

    @classmethod
    def of(cls, uses: Counts, tokens: Integers, need: int, *, seed: int, orders: int = ORDERS) -> "Orders":
        """Return random orders of inputs.

        Args:
            uses: ``(n, X)`` tokens of an input that each expert gets.
            tokens: ``(n,)``.
            need: tokens that are enough.
            seed: of the orders.
            orders: O.
        """
        number, experts = uses.shape
        after = np.empty((orders, number), np.int64)
        reached = np.empty((orders, experts), np.int64)
        width = max(_SUMS // max(number, 1), 1)
        for index in range(orders):
            order = generator(seed, "coverage", draw=index).permutation(number)
            after[index] = tokens[order].cumsum()
            for start in range(0, experts, width):
                part = uses[order, start : start + width].cumsum(0, dtype=np.int64)
                reached[index, start : start + width] = (part < need).sum(0)
        return cls(after, reached)

    def needed(self) -> Array:
        """Return the tokens until every expert has enough ``(O,)``; infinite where one never has."""
        last = self.reached.max(1)
        number = self.tokens.shape[1]
        tokens = self.tokens[np.arange(len(last)), np.minimum(last, number - 1)].astype(np.float64)
        return np.where(last < number, tokens, np.inf)

    def inputs_needed(self) -> Array:
        """Return the inputs until every expert has enough ``(O,)``; infinite where one never has."""
        last = self.reached.max(1)
        return np.where(last < self.tokens.shape[1], last + 1.0, np.inf)

    def covered(self, grid: Iterable[int]) -> Array:
        """Return the share of the experts that have enough after so many tokens at most ``(O, G)``."""
        experts = self.reached.shape[1]
        shares = []
        for limit in grid:
            inputs = (self.tokens <= limit).sum(1)
            shares.append((self.reached < inputs[:, None]).sum(1) / experts)
        return np.stack(shares, axis=1)


@dataclass(frozen=True)
class EvenRouter:
    """A router that draws each token's k of E experts evenly, in layers that are independent of each other.

    The tokens of an expert are binomial. Those of two experts of a layer are nearly independent, and treated as such.

    Attributes:
        shapes: E and k of each layer.
        need: tokens that are enough.
    """

    shapes: tuple[tuple[int, int], ...]
    need: int

    def covered(self, tokens: int) -> float:
        """Return the expected share of experts with enough tokens.

        One token reaches one expert of four:

        >>> from moeprobe.probes.coverage.collect import EvenRouter
        >>> EvenRouter(((4, 1),), 1).covered(1)
        0.25
        """
        experts = sum(number for number, _ in self.shapes)
        return sum(number * self._enough(tokens, number, top_k) for number, top_k in self.shapes) / experts

    def quantile(self, probability: float) -> int:
        """Return the tokens after which every expert has enough with a probability."""
        low, high = 0, self.need
        while self._all(high) < probability and high < _MOST_TOKENS:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._all(middle) >= probability else (middle, high)
        return high

    def _all(self, tokens: int) -> float:
        """Return the probability that every expert has enough."""
        return float(
            np.prod([self._enough(tokens, number, top_k) ** number for number, top_k in self.shapes])
        )

    def _enough(self, tokens: int, num_experts: int, top_k: int) -> float:
        from scipy.stats import binom

        return float(binom.sf(self.need - 1, tokens, top_k / num_experts))


def greedy_subset(uses: Counts, tokens: Integers, need: int) -> list[int]:
    """Return inputs, one after the other, until each expert has enough that has it in all inputs together.

    The next input is the one that brings most missing tokens for its own tokens. What an input brings never grows,
    so only those on top of a heap are counted again.

    The second input alone serves both experts:

    >>> import numpy as np
    >>> from moeprobe.probes.coverage.collect import greedy_subset
    >>> greedy_subset(np.array([[2, 0], [1, 1], [0, 2]]), np.array([2, 2, 2]), need=1)
    [1]

    Args:
        uses: ``(n, X)`` tokens of an input that each expert gets.
        tokens: ``(n,)``.
        need: tokens that are enough.
    """
    missing = np.where(uses.sum(0) >= need, need, 0)
    rows = max(_SUMS // max(len(missing), 1), 1)
    missing_uses = np.zeros(len(uses), np.int64)
    for start in range(0, len(uses), rows):
        missing_uses[start : start + rows] = np.minimum(uses[start : start + rows], missing).sum(1)
    rates = missing_uses / np.maximum(tokens, 1)
    heap = [(-rate, index) for index, rate in enumerate(rates.tolist()) if rate > 0]
    heapq.heapify(heap)
    subset = []
    while heap and missing.any():
        _, index = heapq.heappop(heap)
        rate = float(np.minimum(uses[index], missing).sum() / max(int(tokens[index]), 1))
        if rate <= 0:
            continue
        if heap and rate < -heap[0][0]:
            heapq.heappush(heap, (-rate, index))
            continue
        subset.append(index)
        missing = np.maximum(missing - uses[index], 0)
    return subset


def grid_of(total: int, points: int = 24) -> list[int]:
    """Return numbers of tokens at which a curve is read: even steps of their logarithm up to all of them."""
    return sorted({round(total ** (point / points)) for point in range(1, points + 1)})


def range_of(values: Sequence[float] | Array) -> tuple[float, float, float]:
    """Return the median of some orders, and the ends of the range that holds 95 % of them."""
    low, high = np.quantile(values, ENDS, method="inverted_cdf")
    return float(np.quantile(values, 0.5, method="inverted_cdf")), float(low), float(high)
