"""Chance levels of long sequences: under resamples they are approximated, by nearly the same numbers."""

import numpy as np
import pytest

from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.chance import levels
from moeprobe.metrics.stats.chance.levels import ENOUGH_SEQUENCES, Chance
from moeprobe.metrics.stats.chance.matched import Matched
from moeprobe.metrics.stats.chance.strata import Strata
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.statistic import Statistic

EXPERTS = 8


def position_chance(lengths: np.ndarray) -> Chance:
    """Return the chance level by position of tokens whose experts follow their sequence and their position."""
    rng = np.random.default_rng(0)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(length) for length in lengths])
    favorites = rng.integers(0, EXPERTS, len(lengths))[sequence], position % EXPERTS
    experts = np.where(rng.random(len(sequence)) < 0.4, *favorites)
    following = np.where(rng.random(len(sequence)) < 0.6, experts, rng.integers(0, EXPERTS, len(sequence)))
    trials = Trials(sequence, same(experts, following, size=EXPERTS), num_images=len(lengths))
    return Chance(trials, Strata(position, size=int(lengths.max()), single=True, of_sequences=True))


def resamples_of(lengths: np.ndarray, monkeypatch: pytest.MonkeyPatch, *, largest: int) -> list[np.ndarray]:
    """Return chance and κ under resamples, where so many codes are resampled."""
    monkeypatch.setattr(levels, "RESAMPLED_CODES", largest)
    chance = position_chance(lengths)
    statistics: list[Statistic] = [chance, Kappa(Matched(chance), chance)]
    replicates = Bootstrap(len(lengths), seed=0).replicate([(one, lengths) for one in statistics])
    return [one.values for one in replicates]


def test_approximations_vary_as_resamples_do(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(1).choice([20, 30, 40], 4 * ENOUGH_SEQUENCES)
    exact, near = (resamples_of(lengths, monkeypatch, largest=largest) for largest in (10**9, 0))
    for resampled, approximated in zip(exact, near, strict=True):
        assert not np.array_equal(resampled, approximated)
        assert approximated.std() == pytest.approx(resampled.std(), rel=0.02)
        assert np.corrcoef(resampled, approximated)[0, 1] > 0.99
        for percent in (2.5, 97.5):
            ends = np.percentile(resampled, percent), np.percentile(approximated, percent)
            assert ends[1] == pytest.approx(ends[0], abs=0.1 * resampled.std())


@pytest.mark.parametrize(
    "lengths",
    [
        np.full(ENOUGH_SEQUENCES - 1, 40) - np.arange(ENOUGH_SEQUENCES - 1) % 2,
        # Most tokens are at positions that few sequences have.
        np.repeat([200, 2], [30, 3 * ENOUGH_SEQUENCES]),
        np.full(ENOUGH_SEQUENCES, 40),
    ],
    ids=["few sequences", "few long ones", "equal lengths"],
)
def test_few_or_equal_sequences_are_resampled(lengths: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, same_values = (resamples_of(lengths, monkeypatch, largest=largest) for largest in (10**9, 0))
    for resampled, again in zip(exact, same_values, strict=True):
        np.testing.assert_array_equal(resampled, again)


def test_places_of_images_are_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "RESAMPLED_CODES", 0)
    chance = position_chance(np.random.default_rng(1).choice([20, 30, 40], 4 * ENOUGH_SEQUENCES))
    places = Strata(chance.strata.number, size=chance.strata.size, single=True)
    weights = np.random.default_rng(2).multinomial(400, np.full(400, 1 / 400), 50).T.astype(np.float64)
    of_places = Chance(chance.trials, places).evaluate(weights)
    monkeypatch.setattr(levels, "RESAMPLED_CODES", 10**9)
    np.testing.assert_array_equal(of_places, Chance(chance.trials, chance.strata).evaluate(weights))
