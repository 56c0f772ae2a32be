"""Always-valid intervals: against a Bayes factor by numeric integration, and false alarms of simulated histories."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from moeprobe.metrics.stats.always_valid import first_change, watch

Array = NDArray[np.float64]
REQUESTS, BASELINE = 200, 20


def batch_means(memory: float, batches: int, histories: int, rng: np.random.Generator) -> Array:
    """Means of 200 requests in a row, of a stationary AR(1) of requests with this coefficient ``(histories, batches)``.

    The sum of a batch and its last request are normal, given the last request before it.
    """
    left = np.arange(REQUESTS)
    of_sum = (1 - memory ** (left + 1)) / (1 - memory)
    of_last = memory ** left.astype(float)
    noise = 1 - memory**2
    covariance = noise * np.array(
        [[of_sum @ of_sum, of_sum @ of_last], [of_sum @ of_last, of_last @ of_last]]
    )
    root = np.linalg.cholesky(covariance)
    last, means = rng.standard_normal(histories), np.empty((histories, batches))
    for batch in range(batches):
        added, new = root @ rng.standard_normal((2, histories))
        means[:, batch] = (memory * (1 - memory**REQUESTS) / (1 - memory) * last + added) / REQUESTS
        last = memory**REQUESTS * last + new
    return means


def log_likelihood_ratio(baseline: Array, later: Array) -> float:
    """Of a change, normal with the variance of a batch, against none; flat over the mean and the log of the deviation.

    The mean is integrated by hand, as each side's means and squares are sufficient; change and deviation numerically.
    """
    b, n = len(baseline), len(later)
    difference = later.mean() - baseline.mean()
    squares = ((baseline - baseline.mean()) ** 2).sum() + ((later - later.mean()) ** 2).sum()
    m = b * n / (b + n)

    def likelihood(change: float, deviation: float) -> float:
        off = squares + m * (difference - change * deviation) ** 2
        return float(deviation ** -(b + n - 1) * np.exp(-off / (2 * deviation**2)))

    # In units in which deviations are about 1.
    def over_deviations(change: float) -> float:
        return integrate.quad(lambda log: likelihood(change, np.exp(log)), -4, 4)[0]

    changed = integrate.quad(lambda change: over_deviations(change) * stats.norm.pdf(change), -8, 8)[0]
    return float(np.log(changed / over_deviations(0.0)))


def test_at_its_end_the_likelihood_ratio_is_one_over_the_level() -> None:
    """Batches that are no more alike than by 2 / (b + n), so that no correlation widens the interval."""
    rng = np.random.default_rng(3)
    checked = 0
    for _ in range(20):
        baseline, later = rng.standard_normal(8), rng.standard_normal(6)
        watched = watch(baseline, later)
        if watched.correlation[-1] > -2 / 14:
            continue
        checked += 1
        at_the_end = later - watched.change[-1] + watched.reach[-1]
        assert log_likelihood_ratio(baseline, at_the_end) == pytest.approx(np.log(20), abs=1e-6)
        if checked == 2:
            return
    pytest.fail("no history without correlation")


def test_each_batch_sees_those_before_it_alone_and_units_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    baseline, later = rng.random((3, 10)), rng.random((3, 40))
    every, early = watch(baseline, later), watch(baseline, later[:, :25])
    for name in ("change", "reach", "correlation"):
        np.testing.assert_allclose(getattr(every, name)[:, :25], getattr(early, name))
    moved = watch(7 - 3 * baseline, 7 - 3 * later)
    np.testing.assert_allclose(moved.reach, 3 * every.reach)
    np.testing.assert_allclose(moved.change, -3 * every.change, atol=1e-12)
    # The correlation by a loop, each part about its own mean.
    parts = [part - part.mean() for part in (baseline[0], later[0])]
    expected = sum(part[1:] @ part[:-1] for part in parts) / sum(part @ part for part in parts)
    assert every.correlation[0, -1] == pytest.approx(expected)


def test_batches_that_are_all_equal_differ_by_a_choice_at_least() -> None:
    equal = watch(np.ones(10), np.ones(30), grain=0.01)
    assert (equal.first == 0) and (equal.reach[5:] > 0).all()
    one_less = watch(np.ones(10), np.r_[0.99, np.ones(29)], grain=0.01)
    assert one_less.first == 0
    assert watch(np.ones(10), np.full(30, 0.9), grain=0.01).first > 0


def false_alarms(memory: float, histories: int, batches: int, *, always: bool = True) -> float:
    """The share of histories without any change in which an interval ever excludes 0."""
    means = batch_means(memory, BASELINE + batches, histories, np.random.default_rng(11))
    baseline, later = means[:, :BASELINE], means[:, BASELINE:]
    if always:
        return float((first_change(baseline, later).at > 0).mean())
    ever = np.zeros(histories, bool)
    for batch in range(2, batches + 1):
        ever |= stats.ttest_ind(baseline, later[:, :batch], axis=1).pvalue < 0.05
    return float(ever.mean())


def test_hardly_a_history_without_change_alarms() -> None:
    """A hundred looks: the t test of each look alone alarms in every third history."""
    bound = 0.05 + 2 * np.sqrt(0.05 * 0.95 / 1000)
    assert false_alarms(0.9, 1000, 100) <= bound
    assert false_alarms(0.99, 1000, 100) <= bound
    assert false_alarms(0.9, 300, 100, always=False) > 0.2


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("memory", [0.0, 0.9, 0.97, 0.98, 0.99])
def test_false_alarms_of_ten_thousand_histories(memory: float) -> None:
    rate = false_alarms(memory, 10_000, 500)
    print(f"AR(1) {memory:g}: {rate:.4f}")
    assert rate <= 0.05


def test_a_change_is_found_soon() -> None:
    means = batch_means(0.9, BASELINE + 100, 500, np.random.default_rng(2))
    baseline, later = means[:, :BASELINE], means[:, BASELINE:].copy()
    at_once = first_change(baseline, later + 2 * means.std()).at
    assert (at_once > 0).mean() > 0.99 and np.median(at_once) < 12
    # A change that comes after sixty batches is hidden by these, but not in a stretch of its own.
    later[:, 60:] += 2 * means.std()
    late = first_change(baseline, later)
    found = (late.at > 60) & (late.start >= 50)
    assert found.mean() > 0.9 and np.median(late.at[found]) < 85
    assert (watch(baseline, later).first > 0).mean() < 0.5
