"""Where a curve reaches a level: by interpolation, and its derivative."""

import numpy as np
import pytest

from moeprobe.metrics.stats.curve import LevelOfCurve
from tests.metrics.stats.trials import derivatives

IMAGES, POSITIONS = 7, np.array([2.0, 5.0, 9.0, 10.0])


def curve(level: float) -> LevelOfCurve:
    """Shares of about 0.3, 0.5, 0.7 and 0.9."""
    rng = np.random.default_rng(0)
    trials = rng.integers(5, 30, IMAGES).astype(float)
    hits = trials[:, None] * np.array([0.3, 0.5, 0.7, 0.9]) + rng.uniform(-0.5, 0.5, (IMAGES, 4))
    return LevelOfCurve(POSITIONS, hits, trials, level)


@pytest.mark.parametrize("level", [0.1, 0.4, 0.6, 0.85])
def test_the_place_is_on_the_line_between_two_points(level: float) -> None:
    reached = curve(level)
    weights = np.random.default_rng(1).integers(1, 4, (IMAGES, 5)).astype(float)
    expected = []
    for weight in weights.T:
        shares = [0.0, *(weight @ reached.hits / (weight @ reached.trials))]
        expected.append(float(np.interp(level, shares, [0.0, *POSITIONS])))
    assert reached.evaluate(weights) == pytest.approx(expected)
    assert reached.value(reached.totals()) == pytest.approx(reached.evaluate(np.ones((IMAGES, 1)))[0])
    slopes = derivatives(reached, IMAGES)
    assert reached.influence() == pytest.approx(slopes, abs=1e-7) and np.abs(slopes).max() > 1e-3


def test_nothing_is_known_before_the_first_point_of_a_bounded_curve() -> None:
    """Two images: the first finds all in the first place, the other half of it, and all in the second."""
    hits, trials, weights = (
        np.array([[4.0, 4.0], [2.0, 4.0]]),
        np.array([4.0, 4.0]),
        np.array([[1.0, 1.0], [3.0, 1.0]]),
    )
    places = np.array([4.0, 8.0])
    bounded = LevelOfCurve(places, hits, trials, 0.8, is_bounded=True, undefined="at_smallest")
    # 0.75 with weights of 1, and 0.875 with the first image three times.
    assert bounded.evaluate(weights.T) == pytest.approx([4.8, np.nan], nan_ok=True)
    assert bounded.influence() == pytest.approx(LevelOfCurve(places, hits, trials, 0.8).influence())
    reached = LevelOfCurve(places, hits, trials, 0.7, is_bounded=True)
    assert np.isnan([reached.value(reached.totals()), *reached.influence()]).all()


def test_a_level_that_is_never_reached_has_no_place() -> None:
    reached = curve(0.99)
    assert np.isnan([reached.value(reached.totals()), *reached.influence()]).all()
