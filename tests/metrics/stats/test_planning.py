"""Planned numbers of images: pilots are simulated, and the power of what they plan is that of the noncentral t test."""

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats.planning import (
    detectable,
    images_needed,
    images_with_pairs,
    pairs_to_detect,
    upper_limits,
)
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.two_way import TwoWay

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


# Trainings: differences of pairs, of images, and of both together vary by these.
SPREADS = {"spread": 0.01, "image_spread": 0.1, "residual_spread": 0.1}


def differences(rng: np.random.Generator, pairs: int, images: int, difference: float) -> np.ndarray:
    """Return simulated differences of pairs of trainings on images."""
    return np.asarray(
        difference
        + SPREADS["spread"] * rng.standard_normal((pairs, 1))
        + SPREADS["image_spread"] * rng.standard_normal(images)
        + SPREADS["residual_spread"] * rng.standard_normal((pairs, images))
    )


def power_of(pairs: int, images: int, difference: float, runs: int) -> float:
    """Return the share of experiments whose interval excludes 0."""
    rng = np.random.default_rng([pairs, images])
    ends = [TwoWay.of(differences(rng, pairs, images, difference)).ends() for _ in range(runs)]
    return float(np.mean([low > 0 for low, _ in ends]))


def test_more_pairs_and_more_images_never_show_less() -> None:
    """Few trainings with few degrees of freedom: the formula alone has more images show larger differences only."""
    estimate = TwoWay(0.0, 0.0, 2.0, **SPREADS)
    numbers = [50, 200, 1600, 12_800, 10**6, np.inf]
    table = np.array([[detectable(estimate, pairs, images) for images in numbers] for pairs in (3, 4, 6, 12)])
    # Numbers of images are tried in steps, so the least is known up to a rounding.
    assert (np.diff(table, axis=0) < 0).all() and (np.diff(table, axis=1) <= 1e-4 * table[:, 1:]).all()
    for number, images in enumerate(numbers[:-1]):
        planned = estimate.planned(3, images)
        alone = (stats.t.isf(0.025, planned.freedom) + stats.t.ppf(0.8, planned.freedom)) * planned.error
        assert table[0, number] <= alone * (1 + 1e-9)
        assert images > 400 or table[0, number] == pytest.approx(alone)
    assert table[0, 3] < 0.97 * alone


def test_the_least_number_that_shows_a_difference() -> None:
    """One less does not; nor does any number show what trainings, or images, alone hide."""
    estimate, asked = TwoWay(0.0, 0.0, 2.0, **SPREADS), {"confidence": 0.9, "power": 0.7}
    pairs = pairs_to_detect(estimate, 2000, 0.02, **asked)
    images = images_with_pairs(estimate, 6, 0.025, **asked)
    assert pairs is not None and images is not None and 2 < pairs < images
    for number, limit in ((pairs, 0.02), (pairs - 1, 0.02)):
        assert (detectable(estimate, number, 2000, **asked) <= limit) == (number == pairs)
    for number in (images, images - 1):
        assert (detectable(estimate, 6, number, **asked) <= 0.025) == (number == images)
    assert (
        pairs_to_detect(estimate, 50, 1e-4, **asked) is images_with_pairs(estimate, 3, 1e-3, **asked) is None
    )


def test_upper_limits_of_each_spread() -> None:
    """Trainings have few degrees of freedom; an image's part of one pair has those of images."""
    estimate = TwoWay(0.0, 0.0, 2.0, **SPREADS)
    of_pairs, of_images = (np.sqrt(n / stats.chi2.ppf(0.1, n)) for n in (3, 99))
    limits = upper_limits(estimate, 4, 100, assurance=0.9)
    assert limits.spread == pytest.approx(0.01 * of_pairs)
    assert (limits.image_spread, limits.residual_spread) == pytest.approx((0.1 * of_images, 0.1 * of_images))


@pytest.mark.parametrize(("pairs", "images"), [(3, 100), (3, 800), (6, 200)])
def test_what_trainings_detect_has_its_power(pairs: int, images: int) -> None:
    """250 experiments each, an error of 0.025."""
    size = detectable(TwoWay(0.0, 0.0, 2.0, **SPREADS), pairs, images)
    assert 0.72 <= power_of(pairs, images, size, 250) <= 0.88


@pytest.mark.slow
@pytest.mark.parametrize("pilot", [3, 5])
def test_four_of_five_pilots_plan_enough_pairs(pilot: int) -> None:
    """400 pilots of 200 images: the power of each planned number of pairs is simulated once, in 400 experiments."""
    images, size = 200, 0.025
    rng, planned = np.random.default_rng(pilot), []
    for _ in range(400):
        estimate = TwoWay.of(differences(rng, pilot, images, size))
        pairs = pairs_to_detect(
            upper_limits(estimate, pilot, images), images, size, confidence=0.95, power=0.8
        )
        planned.append(np.inf if pairs is None else pairs)
    numbers = {number: power_of(int(min(number, 40)), images, size, 400) for number in set(planned)}
    power = np.array([numbers[number] for number in planned])
    reached = float((power >= 0.8 - 0.02).mean())
    print(
        f"{pilot} pairs: {np.median(planned):g} planned, mean power {power.mean():.3f}, reached {reached:.3f}"
    )
    assert power.mean() >= 0.78 and reached >= 0.65
