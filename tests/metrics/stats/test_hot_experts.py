"""Loads over windows of requests: against loops over windows, and derivatives."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe.metrics.stats.hot_experts import (
    EXPERTS_PER_HOT,
    BeyondLevel,
    FixedLevel,
    HotOverlap,
    LoadChange,
    LoadCorrelation,
    NextLoad,
    Shuffled,
    Windowed,
    num_hot,
)
from moeprobe.metrics.stats.rank_load import Placed, RankImbalance
from tests.metrics.stats.trials import derivatives

REQUESTS, EXPERTS, WINDOWS = 12, 2 * EXPERTS_PER_HOT, 3
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def windowed() -> Windowed:
    """Loads that no two experts share, so that no tie is broken."""
    histogram = np.random.default_rng(3).gamma(0.5, 10, (REQUESTS, EXPERTS))
    return Windowed(histogram, np.arange(REQUESTS) * WINDOWS // REQUESTS, WINDOWS)


def loads_of(windowed: Windowed, weight: Array) -> list[list[float]]:
    """The load of each expert in each window, request by request."""
    loads = [[0.0] * EXPERTS for _ in range(WINDOWS)]
    for request, window in enumerate(windowed.window):
        for expert in range(EXPERTS):
            loads[window][expert] += weight[request] * windowed.histogram[request, expert]
    return loads


def hot_of(loads: list[float]) -> set[int]:
    return set(sorted(range(EXPERTS), key=lambda expert: -loads[expert])[: num_hot(EXPERTS)])


def jaccard(first: set[int], second: set[int]) -> float:
    return len(first & second) / len(first | second)


def mean_overlap(loads: list[list[float]]) -> float:
    hot = [hot_of(of_window) for of_window in loads]
    return sum(jaccard(*pair) for pair in pairwise(hot)) / (WINDOWS - 1)


def overlap_of_ends(loads: list[list[float]]) -> float:
    return jaccard(hot_of(loads[0]), hot_of(loads[-1]))


def share_of_hot(loads: list[list[float]]) -> float:
    """What the experts that were hot in the window before have of the choices of all later windows."""
    later = loads[1:]
    hit = sum(
        of_window[expert]
        for before, of_window in zip(loads, later, strict=False)
        for expert in hot_of(before)
    )
    return hit / sum(map(sum, later))


def mean_correlation(loads: list[list[float]]) -> float:
    pairs = pairwise(loads)
    return float(np.mean([np.corrcoef(first, second)[0, 1] for first, second in pairs]))


def mean_change(loads: list[list[float]]) -> float:
    shares = [[load / sum(of_window) for load in of_window] for of_window in loads]
    moved = [sum(abs(p - q) for p, q in zip(*pair, strict=True)) / 2 for pair in pairwise(shares)]
    return sum(moved) / len(moved)


@pytest.mark.parametrize(
    ("make", "of_loads", "is_smooth"),
    [
        (HotOverlap, mean_overlap, False),
        (lambda windowed: HotOverlap(windowed, ends=True), overlap_of_ends, False),
        (NextLoad, share_of_hot, True),
        (LoadCorrelation, mean_correlation, True),
        (LoadChange, mean_change, True),
    ],
)
def test_numbers_are_those_of_loops(
    windowed: Windowed, make: type, of_loads: object, is_smooth: bool
) -> None:
    assert callable(of_loads)
    statistic = make(windowed)
    weights = np.random.default_rng(4).integers(1, 4, (REQUESTS, 6)).astype(float)
    expected = [of_loads(loads_of(windowed, weight)) for weight in weights.T]
    assert statistic.evaluate(weights) == pytest.approx(expected)
    slopes = derivatives(statistic, REQUESTS) if is_smooth else np.zeros(REQUESTS)
    assert statistic.influence() == pytest.approx(slopes, abs=1e-7)
    level = FixedLevel(0.2, REQUESTS)
    assert BeyondLevel(statistic, level).evaluate(weights) == pytest.approx((np.array(expected) - 0.2) / 0.8)
    assert BeyondLevel(statistic, level).influence() == pytest.approx(slopes / 0.8, abs=1e-7)


def test_a_window_without_requests_is_no_pair(windowed: Windowed) -> None:
    """A resample without a request of the middle window has no pair; without one of the last, it has the first."""
    weights = np.ones((REQUESTS, 2))
    weights[windowed.window == 1, 0] = 0
    weights[windowed.window == 2, 1] = 0
    none, first = HotOverlap(windowed).evaluate(weights)
    loads = loads_of(windowed, np.ones(REQUESTS))
    assert np.isnan(none) and first == jaccard(hot_of(loads[0]), hot_of(loads[1]))


def test_shuffles_keep_what_windows_hold(windowed: Windowed) -> None:
    shuffled = Shuffled(LoadChange(windowed))
    loads = windowed.shuffled_loads
    assert loads.sum(0) == pytest.approx(np.broadcast_to(windowed.histogram.sum(0)[:, None], loads.shape[1:]))
    assert len(set(shuffled.values.round(9))) > loads.shape[-1] // 2, "in orders of their own"
    assert shuffled.evaluate(np.ones((REQUESTS, 1))) == pytest.approx([shuffled.values.mean()])
    many = shuffled.evaluate(np.ones((REQUESTS, loads.shape[-1] + 2)))
    assert many == pytest.approx([*shuffled.values, *shuffled.values[:2]])
    assert shuffled.influence().tolist() == [0] * REQUESTS


def test_an_imbalance_is_the_busiest_rank_over_the_mean(windowed: Windowed) -> None:
    """Two layers of three ranks, whose busiest one is looked for in each window and layer."""
    ranks = windowed.histogram[:, :6].reshape(REQUESTS, 2, 3)
    placed = Placed(ranks, windowed.window, WINDOWS)
    weights = np.random.default_rng(5).integers(1, 4, (REQUESTS, 4)).astype(float)
    expected = []
    for weight in weights.T:
        busiest = mean = 0.0
        for window in range(WINDOWS):
            for layer in range(2):
                loads = [
                    weight[windowed.window == window] @ ranks[windowed.window == window, layer, rank]
                    for rank in range(3)
                ]
                busiest, mean = busiest + max(loads), mean + sum(loads) / 3
        expected.append(busiest / mean)
    imbalance = RankImbalance(placed)
    assert imbalance.evaluate(weights) == pytest.approx(expected)
    assert imbalance.influence() == pytest.approx(derivatives(imbalance, REQUESTS), abs=1e-7)
