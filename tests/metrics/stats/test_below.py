"""How many experts have less than a limit: by the shares' own intervals, whether resampled or linearized."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.metrics.stats.families import difference, judge
from moeprobe.metrics.stats.linearized import linearize_all, multiply_influences
from moeprobe.metrics.stats.load import CountBelow

LIMIT = 0.02


def drawn(shares: list[float], *, images: int, seed: int = 0) -> np.ndarray:
    """Sixteen choices of each image, whose preferences vary."""
    rng = np.random.default_rng(seed)
    preferred = rng.dirichlet(np.array(shares) * 3 + 1e-9, size=images)
    return np.stack([rng.multinomial(16, one) for one in preferred]).astype(float)


def replicates(histogram: np.ndarray, *, linear: bool) -> Replicates:
    statistic, trials = CountBelow(histogram, LIMIT), histogram.sum(1)
    if linear:
        return linearize_all(statistic, trials)
    return Bootstrap(len(histogram), seed=0, num_resamples=400).replicate([(statistic, trials)])[0]


def test_it_counts_under_each_set_of_weights() -> None:
    statistic = CountBelow(np.array([[99.0, 1, 0], [0, 49, 1]]), LIMIT)
    weights = np.array([[1.0, 0, 3, 0], [0.0, 1, 1, 0]])
    # Shares: (.99, .01, 0); (0, .98, .02), where the limit is not below itself; (297, 52, 1) / 350; nothing.
    assert statistic.evaluate(weights)[:3].tolist() == [2, 1, 1]
    assert np.isnan(statistic.evaluate(weights)[3])


def wilson(share: float, number: float, images: int) -> tuple[float, float]:
    """The true shares p with |share − p| = t √(p (1 − p) / number)."""
    t2 = stats.t.ppf(0.975, images - 1) ** 2
    low, high = np.sort(np.roots([number + t2, -(2 * number * share + t2), number * share**2]).real)
    return low, high


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("third", [0.0, 0.002, 0.02, 0.03, 0.1])
def test_the_interval_is_that_of_the_shares(linear: bool, third: float) -> None:
    histogram, n = drawn([0.5, 0.5 - third, third, 0.0], images=400), 400
    shares, errors = [], []
    for expert in range(4):
        share = histogram[:, expert].sum() / histogram.sum()
        influence = [(histogram[image, expert] - share * 16) / histogram.sum() for image in range(n)]
        shares.append(share)
        errors.append(np.sqrt(n / (n - 1) * sum(one**2 for one in influence)))
    together = sum(p * (1 - p) for p in shares) / sum(error**2 for error in errors)
    ends = [
        wilson(p, p * (1 - p) / error**2 if error else together, n)
        for p, error in zip(shares, errors, strict=True)
    ]
    assert together > 2 * n, "sixteen choices say more than one"
    interval = replicates(histogram, linear=linear).interval()
    assert interval.method == "score"
    assert interval.low == sum(high < LIMIT for _, high in ends)
    assert interval.high == sum(low < LIMIT for low, _ in ends)
    assert interval.low <= interval.value <= interval.high


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("images", "low"), [(100, 0), (400, 3)])
def test_where_all_images_choose_one_expert_only_their_number_counts(
    images: int, low: int, linear: bool
) -> None:
    """t² / (n + t²), the most that n images do not exclude: 0.038 of 100, 0.0096 of 400. A collapse stays visible."""
    histogram = np.tile([16.0, 0, 0, 0], (images, 1))
    interval = replicates(histogram, linear=linear).interval()
    assert (interval.value, interval.low, interval.high) == (3, low, 3)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("open_experts", "flag"), [(4, ""), (5, "not_measurable")])
def test_an_interval_of_more_than_half_of_the_experts_says_nothing(
    open_experts: int, flag: str, linear: bool
) -> None:
    """Of eight experts some are at the limit, which 60 images do not tell from dead."""
    shares = np.full(8, LIMIT)
    shares[open_experts:] = (1 - open_experts * LIMIT) / (8 - open_experts)
    rng = np.random.default_rng(0)
    histogram = np.stack([rng.multinomial(16, shares) for _ in range(60)]).astype(float)
    number = replicates(histogram, linear=linear)
    interval = number.interval()
    assert interval.flag == flag
    assert flag or (interval.low, interval.high) == (0, 4)
    same = number.minus(number).interval()
    assert same.flag == (flag or ("unstable" if linear else "")), "a difference has no value either"


def test_the_examples_are_on_either_side_and_at_the_limit() -> None:
    found = [
        replicates(drawn([0.5, 0.5 - third, third, 0.0001], images=400), linear=True).interval()
        for third in (0.002, 0.02, 0.1)
    ]
    assert [(one.low, one.high) for one in found] == [(2, 2), (1, 2), (1, 1)]


@pytest.mark.parametrize("linear", [False, True])
def test_a_difference_is_known_where_every_share_is(linear: bool) -> None:
    dead, alive = (
        drawn([0.6, 0.4 - third, third], images=400, seed=seed) for third, seed in ((0.001, 1), (0.2, 2))
    )
    one, other = (replicates(histogram, linear=linear) for histogram in (dead, alive))
    influence = CountBelow(dead, LIMIT).influence() - CountBelow(alive, LIMIT).influence()
    assert not influence.any()
    minus = one.minus(other)
    assert (minus.interval().value, minus.interval().low, minus.interval().high) == (1, 1, 1)
    if linear:
        (minus,) = multiply_influences([minus], seed=0)
    compared = difference(one, other, influence)
    (judged,) = judge([dataclasses.replace(compared, replicates=minus)])
    assert (judged.sim_low, judged.sim_high) == (1, 1)


@pytest.mark.parametrize("linear", [False, True])
def test_a_difference_with_a_share_at_the_limit_is_not_known(linear: bool) -> None:
    edge, alive = (
        drawn([0.6, 0.4 - third, third], images=400, seed=seed) for third, seed in ((LIMIT, 1), (0.2, 2))
    )
    one, other = (replicates(histogram, linear=linear) for histogram in (edge, alive))
    influence = CountBelow(edge, LIMIT).influence() - CountBelow(alive, LIMIT).influence()
    assert np.isnan(influence).all()
    interval = one.minus(other).interval()
    if linear:
        assert interval.flag == "unstable" and np.isnan(interval.low)
    else:
        assert (interval.low, interval.high) == (0, 1)
    (judged,) = judge([difference(one, other, influence)])
    assert np.isnan(judged.sim_low) and np.isnan(judged.p)


def test_how_often_the_interval_holds_the_true_count() -> None:
    """Of 300 experiments with an expert at 0.8 of the limit and another at 1.25 of it."""
    shares = np.array([0.6, 0.359, 0.016, 0.025])
    truth, held = int((shares < LIMIT).sum()), 0
    for seed in range(300):
        interval = replicates(drawn(shares.tolist(), images=200, seed=seed), linear=True).interval()
        held += interval.low <= truth <= interval.high
    assert held >= 0.9 * 300


def test_where_nothing_is_chosen_nothing_is_known() -> None:
    nothing = CountBelow(np.zeros((30, 4)), 0.1)
    assert np.isnan(nothing.evaluate(np.ones((30, 1)))).all()
    assert np.isnan(nothing.influence()).all()
