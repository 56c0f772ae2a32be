"""Arithmetic of values with their resamples, influences and bounds, field by field."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe.metrics.stats.bootstrap import (
    CROSSED,
    FEW_CARRIERS,
    Bootstrap,
    Estimate,
    Replicates,
    average,
    with_crossed,
    with_observations,
)
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Ratio, Share, standard_error
from moeprobe.metrics.stats.two_way import TwoWay

IMAGES = 40
Array = NDArray[np.float64]


def made(point: float, seed: int, **more: object) -> Replicates:
    """A value with 50 resamples and influences; a second one has ten resamples, images and trials more."""
    rng = np.random.default_rng(seed)
    values = point + 0.1 * rng.standard_normal(50 + 10 * seed)
    fields = {
        "swing": 0.5 + seed,
        "grain": 0.1 * seed,
        "undefined": f"flag {seed}",
        "no_interval": f"none {seed}",
    }
    fields |= {"influence": rng.standard_normal(IMAGES), "bounds": (0.0, 1.0), **more}
    return Replicates(point, values, IMAGES + 10 * seed, 90 + 10 * seed, **fields)  # type: ignore[arg-type]


def test_a_difference_is_that_of_each_part() -> None:
    first, second = made(2.0, 0), made(0.5, 1)
    found = first.minus(second)
    assert (found.point, found.images, found.trials) == (1.5, IMAGES, 90)
    assert found.values == pytest.approx(first.values - second.values[:50])
    assert found.influence is not None and first.influence is not None and second.influence is not None
    assert found.influence == pytest.approx(first.influence - second.influence)
    assert found.error == standard_error(found.influence, IMAGES)
    assert (found.swing, found.grain, found.bounds) == (1.5, 0.1, None)
    assert (found.undefined, found.no_interval) == ("flag 0", "none 0")
    # Sums in another order differ in their last bits, which are no difference where influences say what is.
    close = replace(first, point=2.0 * (1 + 2**-50))
    assert first.minus(close).point == 0 and first.minus(replace(close, influence=None)).point != 0
    assert first.minus(replace(first, point=2.0 * (1 + 2**-40))).point != 0


def test_a_ratio_is_that_of_each_part() -> None:
    first, second = made(2.0, 0, no_interval=""), made(0.5, 1)
    found = first.over(second)
    assert (found.point, found.images, found.trials) == (4.0, IMAGES, 90)
    assert found.values == pytest.approx(first.values / second.values[:50])
    assert found.influence is not None and first.influence is not None and second.influence is not None
    # The derivative of a / b along both influences.
    step = 1e-6
    up, down = (
        (2.0 + sign * step * first.influence) / (0.5 + sign * step * second.influence) for sign in (1, -1)
    )
    assert found.influence == pytest.approx((up - down) / (2 * step), rel=1e-6)
    assert found.error == standard_error(found.influence, IMAGES)
    assert (found.swing, found.grain, found.bounds, found.undefined) == (3.0, 0.2, None, "flag 0")
    values = second.values.copy()
    values[3] = 0
    assert np.isnan(first.over(replace(second, values=values)).values[3])


def test_a_ratio_over_nothing_has_no_trials() -> None:
    found = made(2.0, 0, no_interval="").over(made(0.0, 1))
    assert np.isnan(found.point) and len(found.values) == found.trials == 0 and found.bounds is None
    assert found.interval().flag == "no_trials"


def test_one_minus_a_value() -> None:
    first = made(0.3, 0)
    found = first.complement()
    assert found.point == 0.7 and found.values == pytest.approx(1 - first.values) and found.bounds is None
    assert found.influence is not None and first.influence is not None
    assert found.influence == pytest.approx(-first.influence)
    assert replace(first, influence=None).complement().influence is None


def shares(paired: bool = True) -> list[Replicates]:
    rng, count = np.random.default_rng(3), np.full(IMAGES, 8.0)
    hits = [rng.binomial(8, share, IMAGES).astype(float) for share in (0.6, 0.8)]
    if not paired:
        return [linearize_all(Share(one, count), count) for one in hits]
    return Bootstrap(IMAGES, seed=0, num_resamples=100).replicate(
        [(Share(one, count), count) for one in hits]
    )


def test_a_mean_of_shares_is_a_share() -> None:
    resampled, linear = shares(), shares(paired=False)
    mean, of_linear = average(resampled), average(linear)
    point = (resampled[0].point + resampled[1].point) / 2
    assert mean.point == pytest.approx(point) and (mean.images, mean.trials, mean.swing) == (IMAGES, 640, 1)
    assert mean.values == pytest.approx((resampled[0].values + resampled[1].values) / 2)
    # Resamples vary as samples of n do, but for n − 1 in the place of n.
    error = np.sqrt(IMAGES / (IMAGES - 1)) * mean.values.std()
    assert mean.bounds == pytest.approx(score_interval(point, error, IMAGES))
    assert of_linear.influence is not None
    assert of_linear.influence == pytest.approx(
        sum(one.influence for one in linear if one.influence is not None) / 2
    )
    error = standard_error(of_linear.influence, IMAGES)
    assert of_linear.error == error and of_linear.bounds == pytest.approx(
        score_interval(point, error, IMAGES)
    )
    assert average(resampled[:1]) is resampled[0]


def test_a_mean_with_anything_else_is_no_share() -> None:
    share, count = shares()[0], np.ones(IMAGES)
    ratio = Bootstrap(IMAGES, seed=0, num_resamples=80).replicate([(Ratio(count, 2 * count), count)])[0]
    assert average([share, ratio]).bounds is None and len(average([share, ratio]).values) == 80
    # A share's swing is 1: what moves by more may leave 0 and 1.
    assert average([share, replace(share, swing=2.0)]).bounds is None
    nothing = replace(share, point=np.nan, undefined="no_cost")
    assert average([share, nothing]).undefined == "no_cost" and average([share, nothing]).bounds is None
    losses = [made(1.0, 0, contributions=np.arange(1.0, IMAGES + 1) * factor) for factor in (1, 3)]
    mean = average(losses)
    assert mean.contributions is not None and mean.contributions == pytest.approx(
        2 * np.arange(1, IMAGES + 1)
    )
    assert average([losses[0], share]).contributions is None


def test_a_mean_over_perturbations_has_an_interval_over_both() -> None:
    crossed = np.random.default_rng(5).standard_normal((4, IMAGES))
    first = with_crossed(made(0.3, 0, no_interval="", grain=0.0), crossed)
    assert first.bounds == TwoWay.of(crossed).ends() and first.method == CROSSED
    second = with_crossed(made(0.1, 0, no_interval="", grain=0.0), crossed[::-1] / 2)
    assert first.minus(second).bounds == pytest.approx(TwoWay.of(crossed - crossed[::-1] / 2).ends())
    assert first.minus(made(0.1, 0)).crossed is None


def test_a_linearized_interval_is_t_errors_of_images_and_of_one_more() -> None:
    one = made(0.3, 0, error=0.1, grain=0.05, bounds=None, no_interval="")
    reach = stats.t.isf(0.025, IMAGES - 1) * np.sqrt(0.1**2 + 0.05**2)
    found = one.interval()
    assert (found.low, found.high) == pytest.approx((0.3 - reach, 0.3 + reach), rel=1e-12)
    assert replace(found, low=0.0, high=0.0) == Estimate(0.3, 0.0, 0.0, method="linearized")
    # A value of 0 that images do not agree on has the same, and a certain one that of the image more.
    assert replace(one, point=0.0).interval().high == pytest.approx(reach)
    certain = replace(one, error=0.0).interval()
    assert certain.high == pytest.approx(0.3 + stats.t.isf(0.025, IMAGES - 1) * 0.05)
    for more, flag in (
        ({"images": 19}, "few_images"),
        ({"carriers": 9}, FEW_CARRIERS),
        ({"error": np.nan}, "unstable"),
        ({"no_interval": "level"}, "level"),
        ({"point": np.nan}, "flag 0"),
        ({"point": np.nan, "trials": 0}, "no_trials"),
    ):
        found = replace(one, **more).interval()
        assert (found.flag, found.carriers) == (flag, 9 if flag == FEW_CARRIERS else None)
        assert np.isnan([found.low, found.high]).all()
    assert replace(one, bounds=(0.1, 0.6)).interval() == Estimate(0.3, 0.1, 0.6, method="score")
    # Where no image shows a difference, as many could have missed the share in which there is one.
    same = replace(one, point=0.0, error=0.0, grain=0.0, swing=0.5)
    t = stats.t.isf(0.025, IMAGES - 1)
    assert same.interval().high == pytest.approx(0.5 * t**2 / (IMAGES + t**2))


@pytest.mark.parametrize(
    ("point", "effect", "observations"), [(0.0, 4.0, 125), (1.0, 4.0, 125), (0.0, 0.5, 500)]
)
def test_a_share_of_nothing_counts_its_trials(point: float, effect: float, observations: int) -> None:
    ends = (0.0, 0.3) if point == 0 else (0.7, 1.0)
    one = Replicates(point, np.empty(0), images=IMAGES, trials=500, bounds=ends, swing=1.0)
    t = stats.t.isf(0.025, IMAGES - 1)
    missed = t**2 / (observations + t**2)
    expected = (0.0, missed) if point == 0 else (1 - missed, 1.0)
    assert with_observations(one, effect).bounds == pytest.approx(expected)
    # Never fewer than images, and never wider than before.
    of_images = t**2 / (IMAGES + t**2)
    assert with_observations(one, 1000.0).bounds == pytest.approx(
        (0.0, of_images) if point == 0 else (1 - of_images, 1.0)
    )
    narrow = replace(one, bounds=(0.0, 0.001) if point == 0 else (0.999, 1.0))
    assert with_observations(narrow, effect) is narrow
    between = replace(one, bounds=(-0.1, 1.1))
    assert with_observations(between, effect) is between
    assert with_observations(replace(one, bounds=None), effect).bounds is None
