"""Chance levels of sets of experts from drawn pairs of tokens: against sums over all pairs."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import jaccard as by_subsets
from moeprobe.metrics.stats.chance import sampled
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.sampled import SampledChance, Sets, of_choices, set_chance_within_image
from moeprobe.metrics.stats.chance.sets import SetChance
from moeprobe.metrics.stats.chance.strata import Strata, single_stratum
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.statistic import standard_error

IMAGES, ONCE = 23, np.ones((23, 1))
Choices = NDArray[np.int64]


def choices(
    size: int, *, experts: int = 12, images: int = IMAGES, seed: int = 0, empty: float = 0.0
) -> tuple[Choices, Choices, Choices]:
    """Return image and both sides' choices of random trials; images have 0 to 12 of them, and a liking each."""
    rng = np.random.default_rng(seed + size)
    image = np.repeat(np.arange(images), rng.integers(0, 13, images))
    scores = rng.normal(size=(len(image), experts)) + rng.normal(size=(images, experts))[image]
    sides = [
        np.argsort(-scores - 0.5 * rng.normal(size=scores.shape), axis=1)[:, :size].astype(np.int64)
        for _ in range(2)
    ]
    for side in sides:
        side[rng.random(side.shape) < empty] = -1
    return image, sides[0], sides[1]


def both(
    image: Choices, reference: Choices, view: Choices, stratum: Choices, *, experts: int = 12
) -> tuple[SampledChance, SetChance]:
    """Return the chance level of the same trials in both ways."""
    sides = [of_choices(side, experts) for side in (reference, view)]
    members = np.concatenate([side.members()[:, :experts] for side in sides])
    sets, numbers = np.unique(members, axis=0, return_inverse=True)
    rows = numbers.reshape(2, -1)
    images = int(image.max()) + 1
    return SampledChance(
        image=image, reference=sides[0], view=sides[1], strata=Strata(stratum), num_images=images
    ), SetChance(reference=rows[0], view=rows[1], sets=sets, stratum=stratum, image=image, num_images=images)


def index(one: Choices, other: Choices) -> float:
    """|S ∩ T| / |S ∪ T|, from Python's sets."""
    first, second = ({int(expert) for expert in side if expert >= 0} for side in (one, other))
    return len(first & second) / max(len(first | second), 1)


@pytest.mark.parametrize("empty", [0.0, 0.5])
@pytest.mark.parametrize("experts", [12, 64, 70, 130])
@pytest.mark.parametrize(("size", "strata"), [(1, 1), (2, 4), (5, 1), (5, 4), (8, 40), (11, 2)])
def test_of_few_tokens_it_is_exact(size: int, strata: int, experts: int, empty: float) -> None:
    image, *sides = choices(size, experts=experts, empty=empty)
    stratum = np.random.default_rng(0).integers(0, strata, len(image)) * 1000
    one, other = both(image, sides[0], sides[1], stratum, experts=experts)
    once = np.ones((image.max() + 1, 1))
    assert one.evaluate(once) == pytest.approx(other.evaluate(once), rel=1e-12)
    np.testing.assert_allclose(one.influence(), other.influence(), atol=1e-13)
    assert abs(one.influence().sum()) < 1e-13 and np.abs(one.influence()).max() > 1e-5


def test_it_is_the_mean_of_a_loop() -> None:
    image, reference, view = choices(5, images=9)
    expected = np.mean(
        [
            index(reference[p], view[q])
            for p, q in itertools.product(range(len(image)), repeat=2)
            if image[p] != image[q]
        ]
    )
    one, _ = both(image, reference, view, 0 * image)
    assert one.evaluate(np.ones((image.max() + 1, 1))) == pytest.approx(expected, rel=1e-12)


def drawn(seed: int, partners: int, monkeypatch: pytest.MonkeyPatch) -> tuple[SampledChance, Chance]:
    """Return the chance level of sets of four by draws, and by the exact counts of subsets."""
    monkeypatch.setattr(sampled, "PARTNERS", partners)
    monkeypatch.setattr(sampled, "PAIRS", 0)
    image, *sides = choices(4, images=60, seed=100 * seed)
    trials = Trials(image, by_subsets(sides[0], sides[1], num_experts=12), num_images=60)
    exact = Chance(trials, single_stratum(len(image)))
    reference, view = (of_choices(side, 12) for side in sides)
    strata = Strata(0 * image)
    return SampledChance(image=image, reference=reference, view=view, strata=strata, num_images=60), exact


@pytest.mark.parametrize("partners", [2, 16])
def test_intervals_cover_the_exact_value_and_hold_the_draw(
    partners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels with k = 4: the square of the standard error is that of the exact one, and the draw's twice."""
    errors, squares = [], []
    for seed in range(200):
        one, exact = drawn(seed, partners, monkeypatch)
        errors.append(one.evaluate(np.ones((60, 1)))[0] - exact.value())
        squares.append([standard_error(level.influence(), 60) ** 2 for level in (one, exact)])
    sampled_squares, exact_squares = np.transpose(squares)
    covered = np.abs(errors) <= 1.96 * np.sqrt(sampled_squares)
    assert covered.mean() >= (0.98 if partners == 2 else 1)
    of_draw = np.var(errors)
    assert abs(np.mean(errors)) < 3 * np.sqrt(of_draw / 200) and of_draw > 0
    added = (sampled_squares - exact_squares).mean()
    # Twice, within what 200 draws tell.
    assert 1.5 * of_draw < added < 2.6 * of_draw


def test_more_partners_are_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = []
    for partners in (2, 32):
        levels = [drawn(seed, partners, monkeypatch) for seed in range(60)]
        apart.append(np.std([one.evaluate(np.ones((60, 1)))[0] - exact.value() for one, exact in levels]))
    assert apart[1] < apart[0] / 3


def test_strata_of_any_size_are_drawn_from_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a stratum have experts of their own: a partner of another one would have none in common."""
    monkeypatch.setattr(sampled, "PARTNERS", 5)
    monkeypatch.setattr(sampled, "PAIRS", 0)
    rng = np.random.default_rng(0)
    image = np.repeat(np.arange(40), 6)
    stratum = rng.choice([3, 7, 8, 50], len(image), p=[0.6, 0.3, 0.08, 0.02])
    chosen = np.stack([stratum * 4 + column for column in range(4)], axis=1)
    one, _ = both(image, chosen, chosen, stratum, experts=256)
    assert one.evaluate(np.ones((40, 1))) == pytest.approx(1, abs=1e-13)
    assert np.abs(one.influence()).max() < 1e-13


def test_where_no_stratum_has_two_images_there_is_no_value() -> None:
    chosen = of_choices(np.array([[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]), 6)
    chance = SampledChance(
        image=np.arange(2), reference=chosen, view=chosen, strata=Strata(np.arange(2)), num_images=2
    )
    assert np.isnan(chance.evaluate(np.ones((2, 1)))).all()


@pytest.mark.parametrize("moved", [False, True])
def test_long_images_meet_drawn_tokens_of_their_own(moved: bool) -> None:
    rng = np.random.default_rng(0)
    images, tokens, experts = 40, 200, 16
    image = np.repeat(np.arange(images), tokens)
    position = np.tile(np.arange(tokens), images)
    scores = rng.normal(size=(len(image), experts)) + 2 * rng.normal(size=(images, experts))[image]
    reference, view = (np.argsort(-scores - rng.normal(size=scores.shape), axis=1)[:, :4] for _ in range(2))
    sides = [of_choices(side, experts) for side in (reference, view)]
    numbers = (position, (position // 3)) if moved else (position, position)
    share, present = set_chance_within_image(
        image=image, reference=sides[0], view=sides[1], tokens=numbers, num_images=images
    )
    expected = []
    for number in range(images):
        rows = image == number
        first, second = (side.members()[rows] for side in sides)
        common = first @ second.T
        apart = np.logical_and.reduce([side[rows][:, None] != side[rows] for side in numbers])
        expected.append((common / (8 - common))[apart].mean())
    found = share.numerator / share.denominator
    assert present.all()
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert found.mean() == pytest.approx(np.mean(expected), abs=0.003)
    # The draw belongs to an image, whatever others there are.
    alone = [Sets(side.words[:, image == 7], side.sizes[image == 7]) for side in sides]
    own, _ = set_chance_within_image(
        image=0 * image[image == 7],
        reference=alone[0],
        view=alone[1],
        tokens=(numbers[0][image == 7], numbers[1][image == 7]),
        num_images=1,
    )
    assert (own.numerator / own.denominator)[0] == pytest.approx(found[7], rel=1e-12)
