"""Chance levels of long sequences: under resamples they are approximated, by nearly the same numbers."""

import numpy as np
import pytest

from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.chance import levels
from moeprobe.metrics.stats.chance.levels import ENOUGH_IMAGES, Chance
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
    return Chance(trials, Strata(position, size=int(lengths.max()), single=True))


def resamples_of(lengths: np.ndarray, monkeypatch: pytest.MonkeyPatch, *, largest: int) -> list[np.ndarray]:
    """Return chance and κ under resamples, where so many codes are resampled."""
    monkeypatch.setattr(levels, "RESAMPLED_CODES", largest)
    chance = position_chance(lengths)
    statistics: list[Statistic] = [chance, Kappa(Matched(chance), chance)]
    replicates = Bootstrap(len(lengths), seed=0).replicate([(one, lengths) for one in statistics])
    return [one.values for one in replicates]


def test_approximations_vary_as_resamples_do(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(1).choice([40, 60, 80], ENOUGH_IMAGES)
    exact, near = (resamples_of(lengths, monkeypatch, largest=largest) for largest in (10**9, 0))
    for resampled, approximated in zip(exact, near, strict=True):
        assert not np.array_equal(resampled, approximated)
        assert approximated.std() == pytest.approx(resampled.std(), rel=0.03)
        assert np.corrcoef(resampled, approximated)[0, 1] > 0.98
        for percent in (2.5, 97.5):
            ends = np.percentile(resampled, percent), np.percentile(approximated, percent)
            assert ends[1] == pytest.approx(ends[0], abs=0.1 * resampled.std())


@pytest.mark.parametrize(
    "lengths",
    [np.random.default_rng(1).choice([40, 60, 80], ENOUGH_IMAGES - 1), np.full(ENOUGH_IMAGES, 40)],
    ids=["few sequences", "equal lengths"],
)
def test_few_or_equal_sequences_are_resampled(lengths: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, same_values = (resamples_of(lengths, monkeypatch, largest=largest) for largest in (10**9, 0))
    for resampled, again in zip(exact, same_values, strict=True):
        np.testing.assert_array_equal(resampled, again)
