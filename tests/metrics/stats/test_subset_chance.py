"""Chance levels of sets of many experts, from the subsets of each: against sums over all pairs of sets."""

import numpy as np
import pytest

from moeprobe.metrics.stats.chance import sets as subset_chance
from moeprobe.metrics.stats.chance.sets import SetChance, SubsetChance
from moeprobe.metrics.stats.chance.trials import Strata

IMAGES, EXPERTS = 23, 12


def both(
    size: int, *, strata: int = 1, single: bool = False, collapsed: bool = False
) -> tuple[SubsetChance, SetChance]:
    """Return the chance level of the same random trials in both ways; images have 0 to 12 of them."""
    rng = np.random.default_rng(size + strata)
    number = rng.integers(0, 13, IMAGES)
    image = np.repeat(np.arange(IMAGES), number)
    # Some experts are commoner than others, and the two sides are alike.
    scores = rng.normal(size=(len(image), EXPERTS)) + np.linspace(0, 2, EXPERTS)
    reference, view = (
        np.argsort(-scores - 0.5 * rng.normal(size=scores.shape), axis=1)[:, :size] for _ in range(2)
    )
    if collapsed:
        reference = view = np.tile(np.arange(size), (len(image), 1))
    place = np.concatenate([np.arange(count) for count in number])
    stratum = place if single else rng.integers(0, strata, len(image)) * 1000
    members = []
    for side in (reference, view):
        members.append(np.zeros((len(side), EXPERTS)))
        np.put_along_axis(members[-1], side, 1, axis=1)
    sets, numbers = np.unique(np.concatenate(members), axis=0, return_inverse=True)
    rows = numbers.reshape(2, -1)
    subsets = SubsetChance(
        reference=reference,
        view=view,
        strata=Strata(stratum, single=single),
        num_experts=EXPERTS,
        image=image,
        num_images=IMAGES,
    )
    return subsets, SetChance(
        reference=rows[0], view=rows[1], sets=sets, stratum=stratum, image=image, num_images=IMAGES
    )


@pytest.mark.parametrize("block", [2**23, 5000])
@pytest.mark.parametrize(
    ("size", "strata"), [(1, 1), (2, 4), (5, 1), (5, 4), (8, 1), (8, 40), (10, 3), (11, 2)]
)
def test_value_and_influences_are_those_of_all_pairs_of_sets(
    size: int, strata: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subset_chance, "_BLOCK_CODES", block)
    monkeypatch.setattr(subset_chance, "_MADE", block)
    one, other = both(size, strata=strata)
    once = np.ones((IMAGES, 1))
    assert one.evaluate(once) == pytest.approx(other.evaluate(once), rel=1e-12)
    np.testing.assert_allclose(one.influence(), other.influence(), atol=1e-14)
    assert abs(one.influence().sum()) < 1e-13 and np.abs(one.influence()).max() > 1e-5


def test_within_positions() -> None:
    one, other = both(6, single=True)
    np.testing.assert_allclose(one.influence(), other.influence(), atol=1e-14)


def test_under_weights_it_is_as_good_as_the_first_order() -> None:
    """Twice as far from weights of one, the error is four times as large."""
    one, other = both(8)
    direction = np.random.default_rng(0).normal(size=(IMAGES, 1))
    apart = [
        abs((one.evaluate(1 + step * direction) - other.evaluate(1 + step * direction))[0])
        for step in (0.01, 0.02)
    ]
    assert apart[1] == pytest.approx(4 * apart[0], rel=0.15) and apart[1] < 1e-3


def test_a_collapsed_router_is_alike_by_chance_to_the_last_digit() -> None:
    one, _ = both(8, collapsed=True)
    assert one.evaluate(np.ones((IMAGES, 1))) == pytest.approx(1.0, abs=1e-13)
    assert np.abs(one.influence()).max() < 1e-13


def test_where_no_stratum_has_two_images_there_is_no_value() -> None:
    chosen = np.array([[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]])
    chance = SubsetChance(
        image=np.arange(2),
        reference=chosen,
        view=chosen,
        strata=Strata(np.arange(2)),
        num_experts=6,
        num_images=2,
    )
    assert np.isnan(chance.evaluate(np.ones((2, 1)))).all()
