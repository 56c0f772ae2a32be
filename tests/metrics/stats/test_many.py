"""Many experts: the test of all, false discoveries and values among all, in experiments whose truth is known."""

import numpy as np
import pytest
from scipy import special, stats

from moeprobe.metrics.stats.many import RATE, ExpertsTest, false_discovery, shrink

INPUTS = 200


def prices(
    rng: np.random.Generator, truths: np.ndarray, *, shared: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Values and influences of experts whose prices are skewed, and high or low for an input whatever the expert."""
    noise = rng.exponential(size=(INPUTS, len(truths))) - 1 + shared * (rng.exponential(size=(INPUTS, 1)) - 1)
    of_inputs = truths + noise
    return of_inputs.mean(0), (of_inputs - of_inputs.mean(0)) / INPUTS


@pytest.mark.parametrize("experts", [8, pytest.param(256, marks=[pytest.mark.slow, pytest.mark.promise])])
def test_equal_experts_differ_in_one_test_of_twenty(experts: int) -> None:
    rng, runs = np.random.default_rng(experts), 200
    p_values = np.array(
        [
            ExpertsTest(INPUTS, seed=0, num_resamples=300).add(*prices(rng, np.zeros(experts)))
            for _ in range(runs)
        ]
    )
    error = np.sqrt(0.05 * 0.95 / runs)
    print(f"{experts} experts: {(p_values <= 0.05).mean():.3f} (error {error:.3f})")
    assert (p_values <= 0.05).mean() <= 0.05 + 2 * error
    assert p_values.mean() == pytest.approx(0.5, abs=0.1)


def test_small_differences_of_many_experts_are_seen_where_bonferroni_names_none() -> None:
    """Truths that vary by half of the noise: the test of all sees it, single experts hardly stand out."""
    rng, named, seen = np.random.default_rng(1), 0, []
    for _ in range(20):
        values, influences = prices(rng, 0.05 * rng.normal(size=256))
        seen.append(ExpertsTest(INPUTS, seed=0, num_resamples=300).add(values, influences))
        z = (values - values.mean()) / np.sqrt((influences**2).sum(0))
        named += int((2 * special.stdtr(INPUTS - 1, -np.abs(z)) <= 0.05 / 256).sum())
    assert np.mean(np.array(seen) <= 0.05) >= 0.9
    assert named <= 20, "Bonferroni names hardly one of 256"


def test_groups_are_tested_together() -> None:
    """Of two layers one differs: their common p says so; of two equal layers it is that of both sums."""
    rng = np.random.default_rng(2)
    test_of_all = ExpertsTest(INPUTS, seed=0, num_resamples=500)
    alike = test_of_all.add(*prices(rng, np.zeros(32)))
    apart = test_of_all.add(*prices(rng, np.linspace(-0.3, 0.3, 32)))
    assert alike > 0.05 > apart
    assert test_of_all.p == pytest.approx(apart, abs=0.02)


def test_false_discoveries_stay_below_the_rate() -> None:
    """A tenth of 256 experts is above 0: of those named, at most 5 % are wrong on average."""
    rng, wrong, named_truly = np.random.default_rng(3), [], []
    truths = np.where(np.arange(256) < 26, 0.4, 0.0)
    for _ in range(100):
        values, influences = prices(rng, truths)
        p_values = special.stdtr(INPUTS - 1, -values / np.sqrt((influences**2).sum(0)))
        named = false_discovery(p_values) <= RATE
        wrong.append(named[26:].sum() / max(named.sum(), 1))
        named_truly.append(named[:26].mean())
    print(f"false discoveries {np.mean(wrong):.3f}, found {np.mean(named_truly):.2f}")
    assert np.mean(wrong) <= RATE + 2 * np.std(wrong) / 10
    assert np.mean(named_truly) > 0.8


def test_false_discovery_rates_are_scipys() -> None:
    p_values = np.random.default_rng(4).random(50) ** 3
    assert false_discovery(p_values) == pytest.approx(stats.false_discovery_control(p_values))
    with_gaps = np.insert(p_values, 7, np.nan)
    assert np.delete(false_discovery(with_gaps), 7) == pytest.approx(false_discovery(p_values))
    assert np.isnan(false_discovery(with_gaps)[7])


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
def test_values_among_all_are_nearer_to_the_truth(spread: float) -> None:
    """Whether experts differ by nothing, a little or much, shrunk values are no further from the truth, on average."""
    rng, raw, among_all = np.random.default_rng(5), 0.0, 0.0
    for _ in range(40):
        truths = spread * rng.normal(size=128)
        values, influences = prices(rng, truths, shared=0.0)
        raw += np.square(values - truths).mean()
        among_all += np.square(shrink(values, influences) - truths).mean()
    print(f"spread {spread}: squared error {among_all / raw:.2f} of the raw one")
    assert among_all < raw * {0.0: 0.1, 0.05: 0.6, 0.5: 1.01}[spread]


def test_equal_values_without_noise_stay() -> None:
    assert shrink(np.full(3, 0.25), np.zeros((5, 3))).tolist() == [0.25] * 3
    # Without noise, values that differ stay, too.
    assert shrink(np.array([0.1, 0.4]), np.zeros((5, 2))) == pytest.approx([0.1, 0.4])


def test_what_all_experts_share_does_not_shrink_their_distances() -> None:
    """A part that moves all prices of an input alike is no noise of their distances."""
    rng = np.random.default_rng(6)
    truths = 0.3 * rng.normal(size=64)
    values, influences = prices(rng, truths, shared=0.0)
    shift = rng.normal(size=(INPUTS, 1)) / 10
    moved = shrink(values + shift.sum(), influences + shift - shift.mean())
    alone = shrink(values, influences)
    assert moved - moved.mean() == pytest.approx(alone - alone.mean())
