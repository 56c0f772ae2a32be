"""Chance levels in strata of few images, as rare tokens are: intervals belong to their values.

Of a stratum of two images more than half of the resamples have no pair of different images.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.matched import Matched
from moeprobe.metrics.stats.chance.sets import SetChance
from moeprobe.metrics.stats.chance.strata import Strata, are_thin
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.linearized import linearize_all

TEXTS, LENGTH, EXPERTS, WORDS = 60, 32, 8, 1500
IMAGE = np.repeat(np.arange(TEXTS), LENGTH)
SHARES = 1 / np.arange(1, WORDS + 1)
FAVORITE = np.random.default_rng(1).integers(0, EXPERTS, WORDS)
# Rare words decide where they go, frequent ones hardly: a chance level without the rare ones is another.
FOLLOWS = np.where(np.arange(WORDS) < 60, 0.2, 0.9)

Side = NDArray[np.int64]


def texts(seed: int) -> tuple[Side, Side, Side]:
    """Return the words of some texts, and the expert of each on either side."""
    rng = np.random.default_rng(seed)
    words = rng.choice(WORDS, TEXTS * LENGTH, p=SHARES / SHARES.sum())
    reference, fresh = (
        np.where(
            rng.random(len(words)) < FOLLOWS[words], FAVORITE[words], rng.integers(0, EXPERTS, len(words))
        )
        for _ in range(2)
    )
    return words, reference, np.where(rng.random(len(words)) < 0.7, reference, fresh)


def chance_of(seed: int) -> Chance:
    words, reference, view = texts(seed)
    return Chance(Trials(IMAGE, same(reference, view, size=EXPERTS), num_images=TEXTS), Strata(words))


def set_chance_of(seed: int) -> SetChance:
    words, reference, view = texts(seed)
    return SetChance(
        image=IMAGE,
        reference=reference,
        view=view,
        sets=np.eye(EXPERTS) + np.roll(np.eye(EXPERTS), 1, axis=1),
        stratum=words,
        num_images=TEXTS,
    )


@pytest.mark.parametrize("make", [chance_of, set_chance_of])
def test_resamples_vary_around_the_value_as_much_as_its_influence_says(make: Callable[[int], Any]) -> None:
    statistic, trials = make(0), np.full(TEXTS, LENGTH)
    [resampled] = Bootstrap(TEXTS, seed=0).replicate([(statistic, trials)])
    error = linearize_all(statistic, trials).error
    assert error is not None
    deviation = resampled.values.std()
    assert abs(resampled.values.mean() - resampled.point) < 4 * deviation / np.sqrt(len(resampled.values))
    assert deviation == pytest.approx(error, rel=0.06)
    assert resampled.point == pytest.approx(float(statistic.evaluate(np.ones((TEXTS, 1)))[0]), abs=1e-12)


def test_intervals_cover() -> None:
    """Of chance, and of the paired difference of κ between two models of one kind, whose truth is 0."""
    truth = float(np.mean([chance_of(1000 + seed).value() for seed in range(200)]))
    bootstrap, covered = Bootstrap(TEXTS, seed=0, num_resamples=400), np.zeros(2)
    sets = 60
    for seed in range(sets):
        pair = [chance_of(2 * seed), chance_of(2 * seed + 1)]
        trials = pair[0].counted_trials()
        kappas = [(Kappa(Matched(one), one), trials) for one in pair]
        chance, one, other = bootstrap.replicate([(pair[0], trials), *kappas])
        for place, number in enumerate((chance, one.minus(other))):
            found = number.interval()
            covered[place] += found.low <= (truth, 0.0)[place] <= found.high
    assert (covered / sets >= 0.88).all(), covered / sets


def test_two_strata_of_few_images_are_thin_too() -> None:
    """24 images, of which two have a word of their own: under weights without them the value is linear."""
    image, stratum = np.repeat(np.arange(24), 2), np.zeros(48, int)
    stratum[[0, 2]] = 1
    reference, view = np.random.default_rng(3).integers(0, 3, (2, 48))
    level = SetChance(
        image=image, reference=reference, view=view, sets=np.eye(3), stratum=stratum, num_images=24
    )
    weights = np.ones((24, 1))
    weights[[0, 5]] = [[0], [2]]
    value = level.evaluate(np.ones((24, 1)))[0]
    expected = value + level.influence() @ (weights[:, 0] - 1)
    assert level.evaluate(weights)[0] == pytest.approx(expected, abs=1e-12)


def test_some_strata_keep_what_holds_of_all() -> None:
    some = Strata(np.array([3, 0, 2]), size=5, single=True).take(np.array([0, 2]))
    assert (some.number.tolist(), some.size, some.single) == ([3, 2], 5, True)


def test_what_is_thin() -> None:
    many = np.ones(400)
    frequent = np.repeat(np.arange(4), 100)
    assert not are_thin(frequent, many, size=2**24, num_images=100)
    pairs = np.repeat(np.arange(200), 2)
    assert are_thin(pairs, many, size=2**24, num_images=100)
    assert not are_thin(pairs, many, size=2**24, num_images=19), "there are no resamples"
    # A stratum of one image has no chance level, and is in neither number.
    assert not are_thin(np.append(frequent, 4), np.append(many, 1e6), size=2**24, num_images=100)
    # One trial in a hundred is let pass, two are not.
    mostly = np.append(frequent, [5, 5])
    assert not are_thin(mostly, np.append(many, [2.0, 2.0]), size=2**24, num_images=100)
    assert are_thin(mostly, np.append(many, [4.1, 4.1]), size=2**24, num_images=100)
