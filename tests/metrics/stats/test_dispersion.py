"""Variance over mean of the loads of images: against a loop over experts, and derivatives."""

import numpy as np
import pytest

from moeprobe.metrics.stats.load import EPSILON, Dispersion, OfShares
from tests.metrics.stats.trials import derivatives

IMAGES, EXPERTS = 8, 3


def drawn(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Loads and tokens; one image has no token."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, 9, IMAGES).astype(float)
    tokens[2] = 0
    return scale * rng.gamma(1.0, 2.0, (IMAGES, EXPERTS)), scale * tokens


@pytest.mark.parametrize("relative", [False, True])
# Loads as small as what keeps a mean from 0, and usual ones.
@pytest.mark.parametrize("scale", [EPSILON, 1.0])
def test_it_is_the_mean_over_experts(scale: float, relative: bool) -> None:
    sums, tokens = drawn(scale)
    statistic = Dispersion(sums, tokens, relative)
    weights = np.random.default_rng(1).integers(1, 4, (IMAGES, 4)).astype(float)
    expected = []
    for weight in weights.T:
        counted = np.where(tokens > 0, weight, 0)
        total = 0.0
        for load in sums.T:
            mean = counted @ load / counted.sum()
            total += counted @ (load - mean) ** 2 / counted.sum() / (mean + EPSILON) / EXPERTS
        most = counted @ tokens / counted.sum() * (1 - 1 / EXPERTS) if relative else 1.0
        expected.append(total / most)
    assert statistic.evaluate(weights) == pytest.approx(expected)
    assert statistic.value(statistic.totals()) == pytest.approx(statistic.evaluate(np.ones((IMAGES, 1)))[0])
    slopes = derivatives(statistic, IMAGES)
    assert statistic.influence() == pytest.approx(slopes, abs=1e-6 * np.abs(slopes).max())
    assert statistic.influence()[2] == 0


def test_what_follows_from_shares_has_their_influence() -> None:
    histogram, _ = drawn(1.0)
    largest = OfShares(histogram, lambda shares: (shares**2).sum(0), lambda shares: 2 * shares)
    shares = histogram.sum(0) / histogram.sum()
    assert largest.value(largest.totals()) == pytest.approx((shares**2).sum())
    assert largest.influence() == pytest.approx(derivatives(largest, IMAGES), abs=1e-8)
