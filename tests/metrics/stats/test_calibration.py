"""The calibration error without its noise, its floor, and the area below the ROC curve of ranks."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats

from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.calibration import (
    Binned,
    CalibrationError,
    CalibrationFloor,
    noise_floor,
    raw_error,
)
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.of_totals import ShareOfTotals
from moeprobe.metrics.stats.ranking import RankedFlips, encode

BINS, TOKENS = 10, 16
Array = NDArray[np.float64]


def drawn(
    rng: np.random.Generator, images: int, *, factor: float, together: float
) -> tuple[Array, NDArray[np.bool_]]:
    """Predictions ``(n, J)`` and flips, ``factor`` times as likely; noise is shared by an image's tokens in part."""
    level = rng.beta(0.6, 1.0, (images, 1))
    predicted = np.clip(rng.beta(1.2, 1.2, (images, TOKENS)) * level, 0, 0.5)
    shared, alone = rng.standard_normal((images, 1)), rng.standard_normal((images, TOKENS))
    noise = np.sqrt(together) * shared + np.sqrt(1 - together) * alone
    return predicted, noise < special.ndtri(np.clip(factor * predicted, 0, 1))


def place_of(predicted: Array) -> NDArray[np.int64]:
    return np.minimum((predicted / 0.5 * BINS).astype(int), BINS - 1)


def binned(predicted: Array, flips: NDArray[np.bool_]) -> Binned:
    rows, place = np.arange(len(predicted))[:, None], place_of(predicted)
    columns = []
    for values in (np.ones_like(predicted), predicted, flips):
        column = np.zeros((len(predicted), BINS))
        np.add.at(column, (rows, place), values)
        columns.append(column)
    return Binned(*columns)


def linear(statistic: CalibrationError | CalibrationFloor | RankedFlips, images: int) -> Replicates:
    return linearize_all(statistic, np.full(images, TOKENS))


def true_error(factor: float) -> float:
    """The calibration error of infinitely many images, by many."""
    predicted, _ = drawn(np.random.default_rng(7), 100_000, factor=factor, together=0.0)
    distance = predicted - np.clip(factor * predicted, 0, 1)
    of_bins = np.bincount(place_of(predicted).ravel(), weights=distance.ravel(), minlength=BINS)
    return float(np.abs(of_bins).sum() / predicted.size)


# Values.


@pytest.mark.parametrize("together", [0.0, 0.5])
def test_numbers_are_those_of_a_loop_over_bins_and_images(together: float) -> None:
    predicted, flips = drawn(np.random.default_rng(0), 40, factor=1.5, together=together)
    value = floor = raw = 0.0
    for number in range(BINS):
        inside = place_of(predicted) == number
        tokens = inside.sum()
        images = int(inside.any(1).sum())
        if not tokens:
            continue
        distance = (predicted[inside].sum() - flips[inside].sum()) / tokens
        residuals = [
            predicted[image][inside[image]].sum() - flips[image][inside[image]].sum() - distance * inside[image].sum()
            for image in range(40)
        ]  # fmt: skip
        share = predicted[inside].mean()
        variance = share * (1 - share) / tokens
        if images > 1:
            squares = sum(residual**2 for residual in residuals)
            variance = max(variance, images / (images - 1) * squares / tokens**2)
        raw += tokens / flips.size * abs(distance)
        value += tokens / flips.size * np.sqrt(max(distance**2 - variance, 0))
        floor += tokens / flips.size * np.sqrt(2 * variance / np.pi)
    statistic = CalibrationError(binned(predicted, flips))
    assert float(raw_error(statistic.binned.totals())) == pytest.approx(raw)
    assert linear(statistic, 40).point == pytest.approx(value)
    of_noise = linear(CalibrationFloor(statistic.binned), 40)
    assert of_noise.point == pytest.approx(floor) and of_noise.interval().flag == "level"


@pytest.mark.parametrize("together", [0.0, 0.3])
def test_the_floor_is_what_redrawn_flips_come_to(together: float) -> None:
    rng = np.random.default_rng(1)
    draws = [binned(*drawn(rng, 200, factor=1.0, together=together)).totals() for _ in range(100)]
    raw, floor = (np.mean([read(sums) for sums in draws]) for read in (raw_error, noise_floor))
    assert floor == pytest.approx(raw, rel=0.08)


def test_blocks_add_up() -> None:
    whole = binned(*drawn(np.random.default_rng(2), 60, factor=2.0, together=0.3))
    parts = [
        Binned(*(column[rows] for column in (whole.tokens, whole.predicted, whole.flips)))
        for rows in (slice(0, 25), slice(25, 60))
    ]

    def added(first: object, second: object) -> object:
        if isinstance(first, tuple) and isinstance(second, tuple):
            return tuple(map(added, first, second))
        return first + second  # type: ignore[operator]

    statistic = CalibrationError(whole)
    totals = added(*(CalibrationError(part).totals() for part in parts))
    assert statistic.value(totals) == pytest.approx(linear(statistic, 60).point)
    np.testing.assert_allclose(
        np.concatenate([CalibrationError(part).influence(totals) for part in parts]), statistic.influence()
    )
    assert statistic.bounds(totals, np.nan, 60) == pytest.approx(statistic.bounds(None, np.nan, 60))


def test_the_influence_is_the_derivative_of_the_raw_form() -> None:
    statistic = CalibrationError(binned(*drawn(np.random.default_rng(3), 200, factor=2.0, together=0.0)))
    step, influence = 1e-5, statistic.influence()
    for image in (0, 9, 199):
        weights = np.ones((200, 2))
        weights[image] += (step, -step)
        up, down = raw_error(statistic.binned.sums(weights))
        assert influence[image] == pytest.approx((up - down) / (2 * step), abs=1e-8)


# Intervals.


def test_the_ends_are_t_standard_errors_from_the_raw_form() -> None:
    """Below it the floor is subtracted, too; where the floor is more than the rest, the end is 0."""
    bins = binned(*drawn(np.random.default_rng(9), 60, factor=2.0, together=0.3))
    raw, floor = (float(read(bins.totals())) for read in (raw_error, noise_floor))
    influence = bins.excess @ np.sign(bins.excess.sum(0)) - raw * bins.tokens.sum(1)
    error = np.sqrt(60 / 59 * (influence**2).sum()) / bins.tokens.sum()
    reach = stats.t.isf(0.025, 59) * error
    assert CalibrationError(bins).bounds(None, np.nan, 60) == pytest.approx(
        (raw - floor - reach, raw + reach)
    )
    exact = binned(*drawn(np.random.default_rng(9), 60, factor=1.0, together=0.3))
    assert CalibrationError(exact).bounds(None, np.nan, 60)[0] == 0
    # Images that all flip where none is predicted to do not vary: an error of 1.
    never = np.zeros((30, TOKENS))
    assert CalibrationError(binned(never, never == 0)).bounds(None, np.nan, 30) == (1, 1)


def coverage(images: int, *, factor: float, together: float, runs: int, seed: int) -> tuple[float, float]:
    """How often the interval holds the truth, and how often that of the raw form as a share would."""
    rng, truth = np.random.default_rng([seed, images]), true_error(factor)
    inside = by_raw_form = 0
    for _ in range(runs):
        statistic = CalibrationError(binned(*drawn(rng, images, factor=factor, together=together)))
        interval = linear(statistic, images).interval()
        assert interval.method == "linearized" and 0 <= interval.low <= interval.value <= interval.high
        inside += interval.low <= truth <= interval.high
        bins = statistic.binned
        columns = np.concatenate([bins.tokens, bins.predicted, bins.flips], axis=1)
        raw = ShareOfTotals(
            columns,
            lambda sums: np.abs(np.diff(np.split(sums, 3)[1:], axis=0)[0]).sum(0) / sums[:BINS].sum(0),
        )
        share = linearize_all(raw, np.full(images, TOKENS)).interval()
        by_raw_form += share.low <= truth <= share.high
    return inside / runs, by_raw_form / runs


def test_the_interval_holds_the_truth_where_it_is_small() -> None:
    new, raw = coverage(40, factor=1.0, together=0.3, runs=60, seed=0)
    assert new >= 0.93
    assert raw < 0.5, "an interval of a sum of distances does not"


@pytest.mark.slow
@pytest.mark.parametrize("images", [40, 200, 1000])
@pytest.mark.parametrize("factor", [1.0, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("together", [0.0, 0.3])
def test_the_interval_holds_the_truth(images: int, factor: float, together: float) -> None:
    new, raw = coverage(images, factor=factor, together=together, runs=500, seed=1)
    print(f"{images} images, {factor} times, {together} together: {new:.3f}, raw form {raw:.3f}")
    assert new >= 0.93
    assert raw < 0.6 or factor > 1


@pytest.mark.parametrize(("runs", "images"), [(60, 200), pytest.param(500, 1000, marks=pytest.mark.slow)])
def test_a_difference_has_an_interval_that_holds_or_none(runs: int, images: int) -> None:
    """Of two predictions that are too low by 10 to 100 %; near its floor neither has a difference."""
    seen, inside = dict.fromkeys((1.0, 1.3, 3.0), 0), dict.fromkeys((1.0, 1.3, 3.0), 0)
    rng, truth = np.random.default_rng(4), true_error(2.0)
    for factor in seen:
        difference = true_error(factor) - truth
        for _ in range(runs):
            one, other = (
                linear(CalibrationError(binned(*drawn(rng, images, factor=factor_of, together=0.3))), images)
                for factor_of in (factor, 2.0)
            )
            interval = one.minus(other).interval()
            assert (interval.flag == "unstable") == bool(np.isnan(interval.low))
            seen[factor] += not interval.flag
            inside[factor] += interval.low <= difference <= interval.high
    assert seen[1.0] == 0 and seen[3.0] == runs
    assert all(inside[factor] >= 0.9 * seen[factor] for factor in seen), (seen, inside)


def test_equal_shares_of_totals_may_differ_in_what_no_image_shows() -> None:
    """A share of 1 moves such a number by 1, so that the interval is that of any share."""
    columns = np.random.default_rng(10).random((30, 2))
    share = linearize_all(ShareOfTotals(columns, lambda sums: sums[0] / sums.sum(0)), np.ones(30))
    t = stats.t.isf(0.025, 29)
    assert share.minus(share).interval().high == pytest.approx(t**2 / (30 + t**2))


# Ranks.


def exact_area(values: Array, flips: NDArray[np.bool_]) -> float:
    ranks, number = stats.rankdata(values), flips.sum()
    above = ranks[flips].sum() - number * (number + 1) / 2
    return float(1 - above / (number * (~flips).sum()))


def coded(values: Array, flips: NDArray[np.bool_], counted: NDArray[np.bool_]) -> RankedFlips:
    return RankedFlips(encode(*map(torch.from_numpy, (values, flips, counted))).numpy())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_area_is_that_of_exact_ranks(scale: float) -> None:
    rng = np.random.default_rng(5)
    values = scale * np.exp(3 * rng.standard_normal((50, 40)))
    flips = rng.random(values.shape) < 1 / (1 + values / scale)
    values[0, :3], counted = (0, np.inf, np.nan), rng.random(values.shape) < 0.9
    counted[0, 2] = False
    area = coded(values, flips, counted)
    assert linear(area, 50).point == pytest.approx(exact_area(values[counted], flips[counted]), abs=2e-4)
    # One bin of a third of an octave or more is too wide.
    assert len(np.unique(area.tokens)) > 500


def test_equal_values_are_ties_and_no_flips_have_no_area() -> None:
    flips, every = np.array([[True, False, False, True]]), np.ones((1, 4), bool)
    assert coded(np.array([[1.0, 1.0, 2.0, 2.0]]), flips, every).evaluate(np.ones((1, 1)))[0] == 0.5
    assert np.isnan(coded(np.ones((1, 4)), ~every, every).evaluate(np.ones((1, 1)))[0])


def test_influences_of_ranks_are_derivatives_and_blocks_add_up() -> None:
    rng = np.random.default_rng(6)
    values = np.exp(rng.standard_normal((30, 12)))
    area = coded(values, rng.random(values.shape) < 0.3, rng.random(values.shape) < 0.8)
    influence, step = area.influence(), 1e-5
    for image in (0, 4, 29):
        weights = np.ones((30, 2))
        weights[image] += (step, -step)
        up, down = area.evaluate(weights)
        assert influence[image] == pytest.approx((up - down) / (2 * step), abs=1e-8)
    parts = [RankedFlips(area.tokens[rows]) for rows in (slice(0, 11), slice(11, 30))]
    totals = parts[0].totals() + parts[1].totals()
    assert area.value(totals) == pytest.approx(area.evaluate(np.ones((30, 1)))[0])
    np.testing.assert_allclose(np.concatenate([part.influence(totals) for part in parts]), influence)


@pytest.mark.parametrize(("runs", "images"), [(60, 40), pytest.param(500, 200, marks=pytest.mark.slow)])
def test_the_interval_of_the_area_holds_it(runs: int, images: int) -> None:
    rng = np.random.default_rng(8)

    def draw(number: int) -> tuple[Array, NDArray[np.bool_]]:
        level = rng.standard_normal((number, 1))
        values = np.exp(rng.standard_normal((number, TOKENS)) + level)
        return values, rng.random(values.shape) < 1 / (
            1 + 2 * values * np.exp(rng.standard_normal((number, 1)))
        )

    values, flips = draw(20_000)
    truth, inside = exact_area(values.ravel(), flips.ravel()), 0
    for _ in range(runs):
        values, flips = draw(images)
        interval = linear(coded(values, flips, np.ones_like(flips)), images).interval()
        inside += interval.low <= truth <= interval.high
    assert inside >= 0.9 * runs
