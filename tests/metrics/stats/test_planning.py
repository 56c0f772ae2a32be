"""Planned numbers of images: pilots are simulated, and the power of what they plan is that of the noncentral t test."""

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats.planning import images_needed
from moeprobe.metrics.stats.proportions import critical

DIFFERENCE, PILOTS = 0.5, 2000


def planned_power(pilot: int, *, assurance: float) -> np.ndarray:
    """Return the power that each of many pilots of normal differences with spread 1 leads to."""
    values = np.random.default_rng(pilot).standard_normal((PILOTS, pilot))
    errors = values.std(1, ddof=1) / np.sqrt(pilot)
    numbers = np.array(
        [
            images_needed(pilot, factor=critical(pilot), error=error, size=DIFFERENCE, assurance=assurance)
            for error in errors
        ]
    )
    least = stats.t.isf(0.025, numbers - 1)
    return np.asarray(stats.nct.sf(least, numbers - 1, DIFFERENCE * np.sqrt(numbers)))


@pytest.mark.parametrize("pilot", [20, 40, 100])
def test_four_of_five_pilots_plan_enough_images(pilot: int) -> None:
    """2,000 pilots each; the error of a share is 0.01. Without assurance about half plan too few."""
    power, plain = (planned_power(pilot, assurance=assurance) for assurance in (0.8, 0.5))
    reached, without = (float(np.mean(one >= 0.8)) for one in (power, plain))
    print(f"pilot of {pilot}: mean power {power.mean():.3f}, reached {reached:.3f}, without {without:.3f}")
    assert 0.83 <= power.mean() <= 0.92
    assert 0.72 <= reached <= 0.88
    assert without <= reached - 0.15


def test_the_numbers_by_hand() -> None:
    """One of scipy's distributions in the place of the other module's functions."""
    widening = 99 / stats.chi2.ppf(0.2, 99)
    to_detect = 100 * widening * ((2.5 + stats.norm.ppf(0.8)) * 0.02 / 0.03) ** 2
    assert images_needed(100, factor=2.5, error=0.02, size=0.03) == np.ceil(to_detect)
    to_equate = 100 * ((2.5 + stats.norm.ppf(0.9)) * 0.02 / 0.03) ** 2
    equivalence = images_needed(100, factor=2.5, error=0.02, size=0.03, both_ends=True, assurance=None)
    assert equivalence == np.ceil(to_equate)
