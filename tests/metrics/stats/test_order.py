"""Quantiles with intervals of ordered values, in experiments whose truth is known, and against counting by hand."""

import math
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe.metrics.stats.order import fewest, quantile

RUNS = 1000


@cache
def population(kind: str) -> NDArray[np.float64]:
    """Very many values, in their order."""
    values = np.random.default_rng(0).beta(0.7, 3, 400_000)
    return np.sort(values if kind == "continuous" else np.random.default_rng(1).binomial(16, values) / 16)


@pytest.mark.parametrize("n", [40, 200, 1000])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["continuous", "of 16 tokens"])
def test_coverage(n: int, share: float, kind: str) -> None:
    """An interval holds the truth in 95 % or more, of shares that have ties too; too few values have none."""
    rng, many = np.random.default_rng(n), population(kind)
    truth = many[math.ceil(share * len(many)) - 1]
    found = [quantile(many[rng.integers(0, len(many), n)], share) for _ in range(RUNS)]
    if n < fewest(share):
        assert all(np.isnan([one.low, one.high]).all() for one in found)
        return
    covered = np.mean([one.low <= truth <= one.high for one in found])
    print(f"n = {n}, {share:.0%}, {kind}: {covered:.3f} (error {math.sqrt(0.05 * 0.95 / RUNS):.3f})")
    assert covered >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / RUNS)
    # And no wider than needed: two ranks further in would miss too often where values have no ties.
    assert kind != "continuous" or covered <= 0.985


@pytest.mark.parametrize(("n", "share"), [(20, 0.5), (57, 0.9), (368, 0.99), (1000, 0.99)])
def test_ranks_are_the_innermost_that_miss_at_most_a_fortieth_on_either_side(n: int, share: float) -> None:
    """By sums of binomial probabilities, in whole numbers."""
    part = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    lower = max(rank for rank in range(1, n + 1) if sum(part[:rank]) <= 0.025)
    upper = min(rank for rank in range(1, n + 1) if sum(part[rank:]) <= 0.025)
    found = quantile(np.arange(1.0, n + 1), share)
    assert (found.low, found.high) == (lower, upper)


def test_a_quantile_is_a_value_that_occurs() -> None:
    values = np.array([0.3, 0.1, 0.2, 0.4] * 5)
    assert quantile(values, 0.5).value == 0.2
    assert quantile(values, 0.9).value == 0.4
    assert np.isnan(quantile(values[:19], 0.5).low), "fewer than 20"
