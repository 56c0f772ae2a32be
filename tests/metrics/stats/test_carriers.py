"""Means of losses that a few images carry have no interval: resampled, linearized, as differences and as means."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tails import IMAGES, WORLDS, World, experiment, simulate, table
from moeprobe.metrics.analyses.output import LOSS
from moeprobe.metrics.base import Columns
from moeprobe.metrics.declaration import Estimator, NumberName
from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates, average
from moeprobe.metrics.stats.carriers import MIN_CARRIERS, Tail, inputs_needed
from moeprobe.metrics.stats.families import difference, judge
from moeprobe.metrics.stats.linearized import linearize, linearize_all, multiply_influences
from moeprobe.metrics.stats.statistic import Array, MeanLoss, PartOf, Ratio
from moeprobe.metrics.stats.units import Units
from tests.metrics.stats.test_coverage import PAGE, error

CALM, HEAVY = (WORLDS[f"half on {few} of 360 images"] for few in ("35 to 50", "3 to 7"))


def by_hand(values: Array) -> int:
    """The fewest values that hold half of their sum without signs, counted one by one."""
    held, whole = 0.0, float(np.abs(values).sum())
    for count, size in enumerate(sorted(np.abs(values), reverse=True), start=1):
        held += size
        if held >= whole / 2:
            return count
    raise AssertionError


def resampled(values: Array) -> Replicates:
    once = np.ones(len(values))
    bootstrap = Bootstrap(len(values), seed=0, num_resamples=200)
    return bootstrap.replicate([(MeanLoss(values, once), once.astype(int))])[0]


def linear(values: Array) -> Replicates:
    once = np.ones(len(values))
    return linearize_all(MeanLoss(values, once), once.astype(int))


@pytest.mark.parametrize("way", [resampled, linear])
@pytest.mark.parametrize("seed", range(4))
def test_carriers_are_those_that_a_loop_counts(way: object, seed: int) -> None:
    assert callable(way)
    for world in (CALM, HEAVY):
        values = world.draw(np.random.default_rng(seed), 300)
        found = way(values)
        assert found.carriers == min(by_hand(values), MIN_CARRIERS)
        estimate = found.interval()
        if found.carriers < MIN_CARRIERS:
            assert (estimate.flag, estimate.carriers) == ("few_carriers", found.carriers)
            assert (
                estimate.value == pytest.approx(values.mean())
                and np.isnan([estimate.low, estimate.high]).all()
            )
        else:
            assert not estimate.flag and estimate.carriers is None and estimate.low < estimate.high
    assert way(HEAVY.draw(np.random.default_rng(seed), 300)).has_few_carriers


@pytest.mark.parametrize("size", [1, 7, 300])
def test_blocks_of_any_size_count_as_one(size: int) -> None:
    values = HEAVY.draw(np.random.default_rng(3), 300)
    tail = Tail.of(values[:size])
    for start in range(size, 300, size):
        tail = tail.plus(Tail.of(values[start : start + size]))
    assert tail.carriers(300) == by_hand(values) < MIN_CARRIERS


def test_many_images_are_counted_block_by_block() -> None:
    """The same count, whether what each image adds is kept for a difference or not."""
    rng = np.random.default_rng(5)
    columns = {"heavy": HEAVY.draw(rng, 400), "calm": CALM.draw(rng, 400), "images": np.ones(400, int)}

    def blocks() -> Iterator[tuple[slice, Columns]]:
        for start in range(0, 400, 90):
            rows = slice(start, min(start + 90, 400))
            yield rows, {name: values[rows] for name, values in columns.items()}

    def estimators(of_block: Columns) -> list[Estimator]:
        return [
            LOSS.mean_of(of_block[name], of_block["images"], expert=expert)
            for expert, name in enumerate(("heavy", "calm"))
        ] + [LOSS.mean_of(of_block["heavy"], of_block["images"])]

    for keep in (True, False):
        numbers, _ = linearize(blocks, 400, estimators, keep=keep)
        heavy, calm, pooled = (numbers[NumberName("loss", "", expert)] for expert in (0, 1, None))
        assert heavy.carriers == pooled.carriers == by_hand(columns["heavy"]) < MIN_CARRIERS
        assert calm.carriers == MIN_CARRIERS and calm.interval().method == "linearized"
        assert heavy.interval().flag == "few_carriers" and heavy.contributions is None
        assert (pooled.contributions is not None) is keep
        if pooled.contributions is not None:
            np.testing.assert_allclose(pooled.contributions, columns["heavy"] / 400)
    # Of units, whose two images may lie in two blocks, each counts once.
    units = Units(np.arange(400) // 2, 200)
    numbers, _ = linearize(blocks, 400, estimators, units=units)
    pooled = numbers[NumberName("loss", "", None)]
    of_units = columns["heavy"].reshape(200, 2).sum(1)
    assert pooled.contributions is not None and pooled.images == 200
    np.testing.assert_allclose(pooled.contributions, of_units / 400)
    assert pooled.carriers == by_hand(of_units)


@pytest.mark.parametrize("way", [resampled, linear])
def test_a_difference_counts_for_itself(way: object) -> None:
    """Two heavy losses with the same few large ones differ by what all images have; two calm ones by one image."""
    assert callable(way)
    rng = np.random.default_rng(1)
    heavy, calm, little = HEAVY.draw(rng, 200), CALM.draw(rng, 200), rng.normal(0.01, 0.02, 200)
    close = way(heavy + little).minus(way(heavy))
    assert way(heavy).has_few_carriers and not close.interval().flag
    assert close.interval().value == pytest.approx(little.mean())
    once = calm.copy()
    once[7] += 50
    far = way(once).minus(way(calm))
    assert (far.carriers, far.interval().flag) == (1, "few_carriers")
    assert way(calm).minus(way(calm)).interval().flag == "", "the same in every image"


@pytest.mark.parametrize("way", [resampled, linear])
def test_a_family_does_not_judge_what_few_images_carry(way: object) -> None:
    """No simultaneous interval, no p, and the other member's are as if it were alone."""
    assert callable(way)
    rng = np.random.default_rng(2)
    pairs = []
    for change in (rng.normal(0.05, 0.1, 200), np.where(np.arange(200) < 2, 30.0, 0.0)):
        base = CALM.draw(rng, 200)
        first, second = way(base + change), way(base)
        influence = (change - change.mean()) / 200
        member = difference(first, second, influence)
        pairs.append(replace(member, replicates=multiply_influences([member.replicates], seed=0)[0]))
    alone, (judged, carried) = judge(pairs[:1]), judge(pairs)
    assert judged == alone[0] and judged.sim_low > 0 and judged.family_cells == 1
    assert np.isnan([carried.sim_low, carried.sim_high, carried.p, carried.p_holm, carried.detectable]).all()


def test_ratios_and_means_count_what_images_add_to_them() -> None:
    rng = np.random.default_rng(4)
    heavy, calm = HEAVY.draw(rng, 200), np.abs(CALM.draw(rng, 200)) + 0.1
    assert resampled(calm).over(resampled(calm * rng.uniform(0.5, 1.5, 200))).carriers == MIN_CARRIERS
    assert resampled(heavy).over(resampled(calm)).has_few_carriers
    huge = np.where(np.arange(200) == 3, 1e4, calm)
    assert resampled(calm).over(resampled(huge)).has_few_carriers
    mean = average([resampled(heavy), resampled(calm)])
    assert mean.carriers == min(by_hand((heavy + calm) / 2), MIN_CARRIERS)
    assert average([resampled(heavy), resampled(-heavy)]).carriers is None, "they cancel in every image"
    rest = np.where(np.arange(200) < 6, 200.0, 0.0)
    share = PartOf(calm, rest + calm, np.ones(200), 1e-5)
    assert linearize_all(share, np.ones(200, int)).has_few_carriers
    share = PartOf(calm, calm * rng.uniform(1, 2, 200), np.ones(200), 1e-5)
    assert not linearize_all(share, np.ones(200, int)).has_few_carriers


def test_nothing_and_its_rounding_are_carried_by_none() -> None:
    for values in (np.zeros(50), np.where(np.arange(50) < 2, 1e-8, 0.0)):
        found = resampled(values)
        assert found.carriers is None and not found.interval().flag
    assert resampled(np.where(np.arange(50) < 2, 1e-3, 0.0)).carriers == 1
    assert resampled(HEAVY.draw(np.random.default_rng(0), 12)).interval().flag == "few_images"


def test_other_means_are_not_guarded() -> None:
    values = HEAVY.draw(np.random.default_rng(0), 200)
    [found] = Bootstrap(200, seed=0, num_resamples=50).replicate(
        [(Ratio(values, np.ones(200)), np.ones(200, int))]
    )
    assert found.carriers is None and not found.interval().flag


def test_images_that_are_needed_are_a_rule_of_three() -> None:
    assert [inputs_needed(360, carriers) for carriers in (1, 4, 9)] == [3600, 900, 400]


def test_truths_of_the_simulation_are_means_of_many_images() -> None:
    rng = np.random.default_rng(6)
    for world in WORLDS.values():
        prices = world.draw(rng, 400_000)
        assert prices.mean() == pytest.approx(world.truth(), abs=4 * prices.std() / np.sqrt(len(prices)))


def test_the_guard_drops_intervals_that_miss_the_truth() -> None:
    """Without it three in ten miss, and an expert that costs as much as the limit is often on the list."""
    rates = experiment(HEAVY, 40, runs=120, resamples=200)
    assert rates.unguarded < 0.85 and rates.listed_unguarded > 0.05
    assert rates.passed == 0 and rates.listed == 0


@pytest.mark.slow
def test_intervals_that_pass_cover() -> None:
    """Where most samples have an interval, it covers as often as docs/concepts/interval-coverage.md says."""
    runs = 400
    found = simulate(runs=runs, resamples=400, seed=1)
    print(table(found))
    names = list(WORLDS)
    for name, num_images in itertools.product(names[:-1], IMAGES[:2]):
        rates = found[name, num_images]
        assert rates.unguarded < 0.93 and rates.passed < 0.02 and rates.listed < 0.02, (name, num_images)
    for (name, num_images), rates in found.items():
        if rates.passed > 0.5:
            assert rates.guarded >= 0.93 - 3 * error(0.93, int(runs * rates.passed)), (name, num_images)
    assert found[names[0], 40].listed_unguarded > 0.2
    page = PAGE.read_text(encoding="utf-8").split("| prices | images |")[1].split("\n\n")[0]
    written = {
        (name, int(images.replace(",", ""))): [float(share) for share in shares if share != "–"]
        for name, images, *shares in (
            [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()[2:]
        )
    }
    assert written.keys() == found.keys()
    for key, (unguarded, passed, *_) in written.items():
        for share, again in ((unguarded, found[key].unguarded), (passed, found[key].passed)):
            spread = np.hypot(error(share, 1000), error(again, runs))
            assert abs(share - again) <= 4 * spread + 2e-3, key


def test_a_calm_world_keeps_its_intervals() -> None:
    rates = experiment(World(CALM.sizes, rises=0.9), 200, runs=60, resamples=200, seed=2)
    assert rates.passed == 1 and rates.guarded == rates.unguarded > 0.85
