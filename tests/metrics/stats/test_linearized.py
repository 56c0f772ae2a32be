"""Numbers of many images, block by block: the same as of all at once, however the blocks are cut."""

import dataclasses
import math
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.analyses.slot_match import SlotMatch
from moeprobe.metrics.base import Columns
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.stats import linearized
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.linearized import linearize, linearize_all, multiply_influences
from moeprobe.metrics.stats.statistic import Ratio, is_additive
from moeprobe.runtime.catalog import DATA
from tests.contracts.test_analyses import AGGREGATES, SIZE, examples, sums

CUTS = {"one": [5], "uneven": [2, 1, 2], "single images": [1] * 5}
# Sets of any size are looked at pair by pair; information and modality permute tokens, which takes all images at hand.
NOT_ADDITIVE = {
    "set_jaccard_chance",
    "set_jaccard_kappa",
    *(metric.name for name in ("information", "modality", "asleep") for metric in AGGREGATES[name].measures),
    # The busiest experts of other folds are looked for in all of them at once.
    "prefetch_router_chance",
    "prefetch_router_kappa",
}
# A checkerboard and its inverse are one observation, wherever they stand: all of them are resampled (see below).
# Windows are compared by what all their requests choose: of many requests, neighbors are one observation beforehand.
WHOLE = ("color_bias", "hot_experts", "rank_load")


def cut(columns: Columns, sizes: list[int]) -> Iterator[tuple[slice, Columns]]:
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        yield rows, {name: values[rows] for name, values in columns.items()}
        start += size


@cache
def sums_of(name: str) -> list[Columns]:
    """The sums per image of each example of an analysis."""
    return [
        {key: column.numpy() for key, column in columns.items()} | {"label": np.arange(SIZE) % 2}
        for pair in examples(name)
        for columns in sums(name, pair).values()
    ]


@pytest.mark.parametrize("sizes", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("name", [name for name in AGGREGATES if name not in WHOLE])
def test_blocks_give_what_the_whole_gives(name: str, aligned: bool, sizes: list[int]) -> None:
    analysis = AGGREGATES[name]
    if isinstance(analysis, Match | SetMatch | SlotMatch):
        analysis = type(analysis)(class_null=True)

    def estimators(block: Columns) -> list[Estimator]:
        return analysis.estimators(block, aligned=aligned)

    for arrays in sums_of(name):
        whole = {one.key: one for one in estimators(arrays)}
        found, others = linearize(partial(cut, arrays, sizes), SIZE, estimators)
        assert {key[0] for key in others} <= NOT_ADDITIVE
        # A single image has one class, and so no information on it.
        missing = whole.keys() - (found.keys() | others)
        assert not missing or (name == "information" and max(sizes) == 1), missing
        assert found.keys() | others <= whole.keys()
        for key, one in found.items():
            statistic, trials = whole[key].statistic, whole[key].used_trials
            point = statistic.evaluate(np.ones((SIZE, 1)))[0]
            assert one.point == pytest.approx(point, rel=1e-12, abs=1e-12, nan_ok=True), key
            assert (one.images, one.trials) == (np.count_nonzero(trials), trials.sum()), key
            if one.influence is not None and not math.isnan(point):
                np.testing.assert_allclose(one.influence, statistic.influence(), atol=1e-11, err_msg=str(key))


def test_checkerboards_are_too_few_to_be_read_in_blocks() -> None:
    assert len(DATA.get("checkerboard")(split="test")) <= linearized.LARGEST


def planted(num_images: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0.3, 1, num_images), rng.integers(1, 9, num_images).astype(float)


def test_the_interval_is_t_standard_errors_of_the_delta_method() -> None:
    over, under = planted(3000)
    found = linearize_all(Ratio(over, under), under)
    value = over.sum() / under.sum()
    error = np.sqrt(3000 / 2999 * (((over - value * under) / under.sum()) ** 2).sum())
    reach = stats.t.ppf(0.975, 2999) * error
    assert found.interval().method == "linearized"
    assert (found.interval().low, found.interval().high) == pytest.approx((value - reach, value + reach))


def test_multipliers_vary_as_the_images_do_and_together() -> None:
    """Influences that are the same up to a factor give values that are; their spread is the error."""
    over, under = planted(3000)
    one = linearize_all(Ratio(over, under), under)
    assert one.influence is not None
    twice = Replicates(0.0, np.empty(0), 3000, 3000, error=2.0, influence=2 * one.influence)
    first, second, untouched = multiply_influences([one, twice, Replicates(0.5, np.ones(7), 9, 9)], seed=1)
    np.testing.assert_allclose(second.values, 2 * (first.values - one.point), rtol=1e-4, atol=1e-9)
    assert first.influence is None and len(first.values) == 2000 and untouched.values.tolist() == [1.0] * 7
    assert one.error is not None
    # 2,000 draws know a standard deviation to 1.6 %.
    assert np.std(first.values) == pytest.approx(one.error, rel=0.07)


def test_what_cannot_be_added_up_is_known_by_its_parts() -> None:
    over, under = planted(30)

    class Whole:
        def evaluate(self, weights: np.ndarray) -> np.ndarray:
            return np.zeros(weights.shape[1])

        def influence(self) -> np.ndarray:
            return np.zeros(30)

    assert is_additive(Ratio(over, under)) and not is_additive(Whole())


def test_of_many_images_a_few_stand_for_what_cannot_be_added_up() -> None:
    replicates = Replicates(0.5, np.empty(0), 3, 3, error=0.1, influence=np.array([1.0, -2.0, 1.0]))
    embedded = linearized.embed(replicates, np.array([0, 2, 5]), 7)
    assert embedded.influence is not None and embedded.influence.tolist() == [1, 0, -2, 0, 0, 1, 0]
    assert embedded.images == 3 and embedded.contributions is None
    losses = linearized.embed(
        dataclasses.replace(replicates, contributions=np.array([0.1, 0.2, 0.4])), np.array([0, 2, 5]), 7
    )
    assert losses.contributions is not None and losses.contributions.tolist() == [0.1, 0, 0.2, 0, 0, 0.4, 0]
