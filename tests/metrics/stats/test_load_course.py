"""Loads along time: an analysis of variance by scipy, and errors of planted and of unchanging loads."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe.metrics.stats.hot_experts import Windowed
from moeprobe.metrics.stats.load_course import LoadCourse, joint_p
from moeprobe.metrics.stats.many import RATE, false_discovery

Array = NDArray[np.float64]


def choices(
    rng: np.random.Generator, requests: int, experts: int, drift: Array | None = None, *, even: float = 0.2
) -> Array:
    """Requests of unequal sizes, each with hot experts of its own; ``drift`` multiplies shares, by request."""
    preferred = rng.dirichlet(np.full(experts, even), size=requests)
    if drift is not None:
        preferred = preferred * drift
        preferred /= preferred.sum(1, keepdims=True)
    sizes = rng.integers(8, 80, requests)
    return np.stack([rng.multinomial(*one) for one in zip(sizes, preferred, strict=True)]).astype(float)


def course(counts: Array, windows: int = 8) -> LoadCourse:
    return LoadCourse.of(Windowed(counts, np.arange(len(counts)) * windows // len(counts), windows))


def test_p_is_that_of_an_analysis_of_variance() -> None:
    counts = choices(np.random.default_rng(0), 60, 6)
    counts[:, 5] = 0
    found = course(counts, 4)
    share = counts.sum(0) / counts.sum()
    off = counts - counts.sum(1, keepdims=True) * share
    for expert in range(5):
        textbook = stats.f_oneway(*np.split(off[:, expert], 4))
        assert found.ratios[expert] == pytest.approx(textbook.statistic)
        assert found.p_values[expert] == pytest.approx(textbook.pvalue)
    assert np.isnan(found.p_values[5]) and found.ratios[5] == 0, "nobody chooses it"


def test_the_spread_is_that_of_the_windows_without_noise() -> None:
    """An expert whose share goes from 0.2 to 0.4 in two windows has a standard deviation of √2 · 0.1."""
    rng = np.random.default_rng(1)
    share = np.repeat([0.2, 0.4], 1000)
    hits = rng.binomial(100, share)
    found = course(np.stack([hits, 100 - hits], axis=1).astype(float), 2)
    assert found.spread[0] == pytest.approx(np.sqrt(2) * 0.1, rel=0.03)
    still = rng.binomial(100, 0.3, 2000)
    assert course(np.stack([still, 100 - still], axis=1).astype(float), 2).spread[0] < 0.005
    # Where requests of a window are all equal, there is no noise, and the p has no limit.
    exact = np.repeat([[3.0, 1.0], [1.0, 3.0]], 10, axis=0)
    assert course(exact, 2).p_values[0] < 1e-12 and course(exact, 2).p < 0.01


def errors(runs: int, experts: int, layers: int) -> tuple[float, float]:
    """How often unchanging loads seem to change, all layers together, and how often any expert is named."""
    rng = np.random.default_rng([5, experts])
    seen = named = 0
    for _ in range(runs):
        courses = [course(choices(rng, 80, experts)) for _ in range(layers)]
        is_seen = joint_p(courses) <= RATE
        seen += is_seen
        rates = false_discovery(np.concatenate([one.p_values for one in courses]))
        # Experts are named where all together show that something changes.
        named += is_seen and bool((rates <= RATE).any())
    return seen / runs, named / runs


def test_unchanging_loads_seldom_seem_to_change() -> None:
    seen, named = errors(40, 16, 2)
    assert seen <= 0.15 and named <= 0.15


def planted(runs: int, experts: int, layers: int) -> tuple[float, float, float]:
    """One expert of ten grows or falls: how often that is seen, the share of them named, and of the named the wrong.

    As many grow as fall, so that the others keep their shares.
    """
    rng = np.random.default_rng([6, experts])
    time = np.linspace(-0.9, 0.9, 400)[:, None]
    moves = np.arange(experts) % 10 == 0
    drift = 1 + time * moves * np.where(np.arange(experts) % 20 == 0, 1, -1)
    seen, found, wrong = 0, list[float](), list[float]()
    for _ in range(runs):
        courses = [course(choices(rng, 400, experts, drift, even=2)) for _ in range(layers)]
        seen += joint_p(courses) <= RATE
        rates = false_discovery(np.concatenate([one.p_values for one in courses])) <= RATE
        found.append(float(rates[np.tile(moves, layers)].mean()))
        wrong.append(float(rates[~np.tile(moves, layers)].sum() / max(rates.sum(), 1)))
    return seen / runs, float(np.mean(found)), float(np.mean(wrong))


@pytest.mark.slow
def test_many_experts() -> None:
    """256 experts in four layers: 5 % of unchanging loads are seen, and 5 % of those named are wrong."""
    seen, named = errors(100, 256, 4)
    print(f"unchanging: seen {seen:.3f}, named {named:.3f}")
    assert seen <= 0.05 + 3 * 0.022 and named <= 0.05 + 3 * 0.022
    seen, found, wrong = planted(10, 256, 4)
    print(f"planted: seen {seen:.3f}, named {found:.3f}, wrong {wrong:.3f}")
    assert seen == 1 and found > 0.3 and wrong <= 0.08


def test_experts_that_move_are_named() -> None:
    seen, found, wrong = planted(5, 40, 1)
    assert seen == 1 and found > 0.5 and wrong <= 0.2
