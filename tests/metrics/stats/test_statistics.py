"""Values and intervals, against loops that take the definitions by their word."""

import itertools
import math
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe.metrics.stats import bootstrap as statistics
from moeprobe.metrics.stats.alike import Codes, same
from moeprobe.metrics.stats.bootstrap import Bootstrap, Estimate, Replicates
from moeprobe.metrics.stats.chance import levels as chance_levels
from moeprobe.metrics.stats.chance.levels import Chance, ResampledChance
from moeprobe.metrics.stats.kappa import Kappa, MeanProduct
from moeprobe.metrics.stats.load import Entropy
from moeprobe.metrics.stats.statistic import Ratio, Share, Statistic
from tests.metrics.stats.trials import chance_of


def trials(
    seed: int, num_images: int = 6, patches: int = 4, codes: int = 3
) -> list[tuple[int, int, int, int]]:
    """Trials as (image, reference, view, position); some patches have no partner."""
    rng = np.random.default_rng(seed)
    return [
        (image, int(rng.integers(codes)), int(rng.integers(codes)), position)
        for image, position in itertools.product(range(num_images), range(patches))
        if rng.random() < 0.8
    ]


def chance(made: list[tuple[int, int, int, int]], num_images: int, *, position: bool) -> Chance:
    image, reference, view, stratum = np.array(made, dtype=np.int64).reshape(-1, 4).T
    return chance_of(
        image=image,
        reference=reference,
        view=view,
        stratum=stratum if position else np.zeros_like(stratum),
        num_images=num_images,
    )


def slow_chance(
    made: list[tuple[int, int, int, int]], weights: NDArray[np.float64], *, position: bool
) -> float:
    """Pair every trial's reference with every view of its stratum in another image, weighted, and count agreements."""
    total, agreement = 0.0, 0.0
    strata = {trial[3] if position else 0 for trial in made}
    for stratum in strata:
        inside = [trial for trial in made if not position or trial[3] == stratum]
        size = sum(weights[trial[0]] for trial in inside)
        pairs = [(one, two) for one in inside for two in inside if one[0] != two[0]]
        number = sum(weights[one[0]] * weights[two[0]] for one, two in pairs)
        if number == 0:
            continue
        agree = sum(weights[one[0]] * weights[two[0]] for one, two in pairs if one[1] == two[2])
        agreement += size * agree / number
        total += size
    return agreement / total if total else math.nan


@pytest.mark.parametrize("position", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_chance_is_the_agreement_of_independent_draws(seed: int, position: bool) -> None:
    made = trials(seed)
    weights = np.random.default_rng(seed).multinomial(6, np.full(6, 1 / 6), size=5).T.astype(float)
    expected = [slow_chance(made, column, position=position) for column in weights.T]
    assert np.allclose(chance(made, 6, position=position).evaluate(weights), expected, rtol=1e-12)


@pytest.mark.parametrize("exact", [2**24, 1])
@pytest.mark.parametrize("cost", [0, 1e9])
@pytest.mark.parametrize(("dense", "small"), [(2**22, 2**17), (2**22, 0), (0, 0)])
@pytest.mark.parametrize("position", [False, True])
def test_chance_of_whole_grids_however_it_is_counted(
    position: bool, dense: int, small: int, cost: float, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position has a trial of every image, so that one stands for all.

    Counts are plain or sparse, in single or double precision, and are added up by cells or by pairs of images.
    """
    for name, value in {"DENSE_KEYS": dense, "SMALL_COUNTS": small, "EXACT_IN_SINGLE": exact}.items():
        monkeypatch.setattr(chance_levels, name, value)
    monkeypatch.setattr(chance_levels, "product_cost", lambda _: cost)
    rng = np.random.default_rng(4)
    made = [
        (image, int(rng.integers(5)), int(rng.integers(4)), place) for image in range(7) for place in range(6)
    ]
    weights = np.random.default_rng(5).multinomial(7, np.full(7, 1 / 7), size=5).T.astype(float)
    expected = [slow_chance(made, column, position=position) for column in weights.T]
    assert np.allclose(chance(made, 7, position=position).evaluate(weights), expected, rtol=1e-12)
    # Another image has one trial less, so that none stands for all.
    expected = [slow_chance(made[:-1], column, position=position) for column in weights.T]
    assert np.allclose(chance(made[:-1], 7, position=position).evaluate(weights), expected, rtol=1e-12)


def test_chance_in_blocks_and_in_double_precision_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trials(3, num_images=8, patches=6, codes=4)
    weights = np.random.default_rng(3).integers(0, 4, (8, 7)).astype(float)
    expected = chance(made, 8, position=True).evaluate(weights)
    monkeypatch.setattr(chance_levels, "NUMBERS_AT_ONCE", 14)
    assert np.allclose(chance(made, 8, position=True).evaluate(weights), expected, rtol=1e-14)
    monkeypatch.setattr(chance_levels, "EXACT_IN_SINGLE", 1)
    assert np.allclose(chance(made, 8, position=True).evaluate(weights), expected, rtol=1e-14)


@pytest.mark.parametrize("small", [2**17, 0])
@pytest.mark.parametrize("position", [False, True])
def test_codes_of_unlike_size_are_counted_each_in_its_way(
    position: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the codes goes by pairs of images, the other by cells; their sum is weighted."""
    rng = np.random.default_rng(9)
    # Of each code the reference's and the view's, image by image.
    chosen = rng.integers(6, size=(2, 2, 7 * 6))
    image, place = (grid.ravel() for grid in np.indices((7, 6)))
    shares = (0.25, 0.75)
    weights = rng.multinomial(7, np.full(7, 1 / 7), size=5).T.astype(float)
    expected = np.zeros(5)
    for share, sides in zip(shares, chosen, strict=True):
        made = [*zip(*(side.tolist() for side in (image, *sides, place)), strict=True)]
        expected += [share * slow_chance(made, column, position=position) for column in weights.T]
    costs = iter([0, 0, 1e9, 1e9])
    monkeypatch.setattr(chance_levels, "SMALL_COUNTS", small)
    monkeypatch.setattr(chance_levels, "product_cost", lambda _: next(costs))
    found = ResampledChance(
        image=image,
        similarity=[
            Codes(share, *(side[:, None] for side in sides))
            for share, sides in zip(shares, chosen, strict=True)
        ],
        stratum=place if position else np.zeros_like(place),
        num_images=7,
    ).evaluate(weights)
    assert next(costs, None) is None and np.allclose(found, expected, rtol=1e-12)


def test_a_long_text_among_short_ones_is_counted_exactly() -> None:
    """What the long text has in common with itself is taken out of all: both need 27 bits, their difference few."""
    rng = np.random.default_rng(2)
    sizes = [9001] + 19 * [41]
    image = np.repeat(np.arange(20), sizes)
    reference, view = np.where(rng.random((2, len(image))) < 0.8, 0, rng.integers(30, size=(2, len(image))))
    made = [*zip(image.tolist(), reference.tolist(), view.tolist(), itertools.repeat(0))]
    counts = np.zeros((2, 20, 30), dtype=np.int64)
    for one, first, second, _ in made:
        counts[0, one, first] += 1
        counts[1, one, second] += 1
    common = counts[0] @ counts[1].T
    weights = rng.multinomial(20, np.full(20, 1 / 20), size=30)
    # Of pairs of two images: all that agree, and how many there are.
    agree, number = (
        np.array([int(each @ pairs @ each - each**2 @ pairs.diagonal()) for each in weights])
        for pairs in (common, np.outer(sizes, sizes))
    )
    found = chance(made, 20, position=False).evaluate(weights.T.astype(float))
    assert found == pytest.approx(agree / number, rel=1e-12)


@pytest.mark.parametrize("codes", [1, 100])
def test_counts_beyond_single_precision_are_exact(codes: int) -> None:
    """Images 0 and 1 have 5000 trials each and are drawn 2049 and 2050 times: the total needs 25 bits."""
    made = [(image, trial % codes, trial % codes, 0) for trial in range(5000) for image in (0, 1)]
    made += [(image, 0, 0, 0) for image in range(2, 4100)]
    weights = np.zeros((4100, 1))
    weights[:3, 0] = 2049, 2050, 1
    here = [np.full(codes, 5000 // codes) for _ in range(2)] + [np.eye(codes, dtype=int)[0]]
    times = [2049, 2050, 1]
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    agree = sum(times[i] * times[j] * int(here[i] @ here[j]) for i, j in pairs)
    expected = agree / sum(times[i] * times[j] * int(here[i].sum() * here[j].sum()) for i, j in pairs)
    null = chance(made, 4100, position=False)
    assert null.evaluate(weights)[0] == pytest.approx(expected, rel=1e-12)
    assert null.evaluate(weights)[0] != pytest.approx(expected * (1 + 1e-9), rel=1e-12)


@pytest.mark.parametrize("strata", [1, 3])
@pytest.mark.parametrize("level", [0, 1])
def test_rounding_takes_no_chance_out_of_its_range(level: int, strata: int) -> None:
    """Each image has a code of its own, or all have one; under weights whose sums are rounded."""
    image, stratum = np.repeat(np.arange(9), 6), np.tile(np.arange(6) % strata, 9)
    code = np.zeros_like(image) if level else image
    found = ResampledChance(image=image, similarity=same(code, code, size=16), stratum=stratum, num_images=9)
    values = found.evaluate(7 * np.random.default_rng(0).random((9, 200)))
    assert values == pytest.approx(level, abs=1e-7) and 0 <= values.min() <= values.max() <= 1


def test_chance_without_trials_does_not_exist() -> None:
    assert np.isnan(chance([], 4, position=True).evaluate(np.ones((4, 2)))).all()


def test_chance_levels_of_eight_experts() -> None:
    """Balanced .125; 90 % to one expert .9² + 7 (.1/7)² = .8114; a raw .85 is then κ .83 or .20."""
    balanced = [(image, expert, expert, 0) for image in range(2) for expert in range(8)]
    one = [0] * 63 + list(range(1, 8))
    collapsed = [(image, expert, expert, 0) for image in range(2) for expert in one]
    raw = Ratio(np.array([85.0, 85.0]), np.array([100.0, 100.0]))
    for made, level, kappa in ((balanced, 0.125, 0.829), (collapsed, 0.8114, 0.205)):
        null = chance(made, 2, position=False)
        assert null.evaluate(np.ones((2, 1)))[0] == pytest.approx(level, abs=1e-4)
        assert Kappa(raw, null).evaluate(np.ones((2, 1)))[0] == pytest.approx(kappa, abs=1e-3)


def test_kappa_is_one_for_perfect_and_nothing_for_collapsed_routing() -> None:
    perfect = [(image, expert, expert, 0) for image in range(2) for expert in range(3)]
    one = Ratio(np.ones(2), np.ones(2))
    assert Kappa(one, chance(perfect, 2, position=False)).evaluate(np.ones((2, 1)))[0] == pytest.approx(1)
    collapsed = [(image, 4, 4, position) for image in range(2) for position in range(49)]
    for position in (False, True):
        assert np.isnan(Kappa(one, chance(collapsed, 2, position=position)).evaluate(np.ones((2, 1)))[0])


@pytest.mark.parametrize("rounding", [0.0, 1e-9, 1e-7, 9e-7])
def test_chance_that_is_one_but_for_rounding_is_one_in_every_null(rounding: float) -> None:
    """Sums in float32 leave 1 − 1e-7 of a collapsed router's chance: κ would then be what rounding makes of it."""
    number = np.full(30, 16.0)
    vectors = np.stack([number * (1 - rounding), np.zeros(30)], axis=1)
    match = Ratio(number * (1 - 2 * rounding), number)
    for null in (
        MeanProduct(vectors, vectors / (1 - rounding), number, number),
        Ratio(number * (1 - rounding), number),
    ):
        assert np.isnan(Kappa(match, null).evaluate(np.ones((30, 1)))).all()
        assert np.isnan(Kappa(match, null).influence()).all()
        estimate = (
            Bootstrap(30, seed=0, num_resamples=50).replicate([(Kappa(match, null), number)])[0].interval()
        )
        assert estimate.flag == "collapsed" and np.isnan(estimate.value)
    # One patch of a million elsewhere is not yet a collapse; one of two million is.
    almost = Ratio(np.full(30, 1 - 2e-6), np.ones(30))
    assert Kappa(Ratio(np.ones(30), np.ones(30)), almost).evaluate(np.ones((30, 1)))[0] == pytest.approx(1)


def test_a_router_that_only_looks_at_the_position_has_no_position_kappa() -> None:
    rng = np.random.default_rng(0)
    num_images, patches = 400, 16
    likely = rng.integers(0, 8, patches)

    def choose(position: int) -> int:
        return int(likely[position]) if rng.random() < 0.7 else int(rng.integers(8))

    made = [(i, choose(p), choose(p), p) for i in range(num_images) for p in range(patches)]
    hits = np.zeros(num_images)
    for image, reference, view, _ in made:
        hits[image] += reference == view
    match = Ratio(hits, np.full(num_images, float(patches)))
    everything = np.ones((num_images, 1))
    pooled = Kappa(match, chance(made, num_images, position=False)).evaluate(everything)[0]
    position = Kappa(match, chance(made, num_images, position=True)).evaluate(everything)[0]
    assert pooled > 0.3
    assert abs(position) < 0.03


def test_ratio_and_entropy_by_loops() -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 3, (7, 4)).astype(float)
    weights[:, 3] = 0
    numerator, denominator = rng.random(7), rng.integers(0, 5, 7).astype(float)
    histogram = rng.integers(0, 6, (7, 4)) * [4.0, 2.0, 1.0, 0.0]
    ratio, entropy = Ratio(numerator, denominator).evaluate(weights), Entropy(histogram).evaluate(weights)
    for column in range(3):
        above = sum(weights[i, column] * numerator[i] for i in range(7))
        below = sum(weights[i, column] * denominator[i] for i in range(7))
        assert ratio[column] == pytest.approx(above / below, rel=1e-12)
        counts: Counter[int] = Counter()
        for i, expert in itertools.product(range(7), range(4)):
            counts[expert] += weights[i, column] * histogram[i, expert]
        total = sum(counts.values())
        slow = -sum(c / total * math.log(c / total) for c in counts.values() if c)
        # Half of Σ Var(p) / p, Var(p_e) the sum over images of w² (h_e − p_e Σ h)² / N².
        for expert, count in counts.items():
            variance = sum(
                weights[i, column] ** 2 * (histogram[i, expert] - count / total * histogram[i].sum()) ** 2
                for i in range(7)
            )
            slow += variance / total / count / 2 if count else 0
        assert entropy[column] == pytest.approx(min(slow / math.log(4), 1), rel=1e-12)
    assert entropy[:3].max() < 1
    assert np.isnan(ratio[3]) and np.isnan(entropy[3])


def test_entropy_of_even_and_of_collapsed_load() -> None:
    everything = np.ones((1, 1))
    assert Entropy(np.full((1, 8), 3.0)).evaluate(everything)[0] == pytest.approx(1)
    found = Entropy(np.array([[0.0, 9.0, 0.0]])).evaluate(everything)[0]
    assert found == 0 and not np.signbit(found)
    # Weights of tokens may add up to less than one token.
    assert Entropy(np.array([[0.3, 0.1, 0.0]])).evaluate(everything)[0] == pytest.approx(
        -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / np.log(3)
    )


def one_by_one(num_images: int, seed: int, num_resamples: int) -> NDArray[np.float64]:
    from moeprobe.runtime.seeds import generator

    weights = np.zeros((num_images, num_resamples))
    for resample in range(num_resamples):
        rng = generator(seed, "bootstrap", draw=resample)
        for image in rng.integers(num_images, size=num_images):
            weights[image, resample] += 1
    return weights


def test_resamples_are_whole_images_and_the_interval_their_percentiles() -> None:
    rng = np.random.default_rng(2)
    hits, count = rng.integers(0, 10, 25).astype(float), np.full(25, 10.0)
    found = Bootstrap(25, seed=7, num_resamples=50).replicate([(Ratio(hits, count), count)])[0]
    slow = [sum(w * h for w, h in zip(column, hits, strict=True)) / 250 for column in one_by_one(25, 7, 50).T]
    assert np.allclose(found.values, slow, rtol=1e-12)
    assert found.point == pytest.approx(hits.sum() / 250)
    assert (found.images, found.trials) == (25, 250)
    # All statistics share the weights, so none may change them.
    assert not statistics.image_weights(25, 7, range(2)).flags.writeable
    estimate = found.interval()
    # 2.5 % of a normal's tails, taken as far out as those of t with 24 degrees of freedom, and as 25 / 24 of variance.
    beyond = stats.norm.cdf(-stats.t.ppf(0.975, 24) * np.sqrt(25 / 24))
    assert 0.01 < beyond < 0.025
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(slow, [beyond, 1 - beyond])))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trials(5, num_images=30)
    count = np.bincount([trial[0] for trial in made], minlength=30).astype(float)
    hits = np.bincount([t[0] for t in made if t[1] == t[2]], minlength=30).astype(float)

    def replicate() -> list[Replicates]:
        null, match = chance(made, 30, position=True), Ratio(hits, count)
        wanted: list[Statistic] = [match, null, Kappa(match, null)]
        bootstrap = Bootstrap(30, seed=1, num_resamples=40)
        return bootstrap.replicate([(statistic, count) for statistic in wanted])

    whole = replicate()
    monkeypatch.setattr(statistics, "WEIGHTS_AT_ONCE", 7 * 30)
    for one, two in zip(whole, replicate(), strict=True):
        assert np.allclose(one.values, two.values, rtol=1e-13)


@pytest.mark.parametrize("images", [19, 20, 60])
def test_the_interval_of_a_share_needs_no_resamples(images: int) -> None:
    count = np.full(images, 4.0)
    hits = np.random.default_rng(3).integers(0, 5, images).astype(float)
    with_them, without = (
        Bootstrap(images, seed=0, num_resamples=50).replicate([(Share(hits, count), count)], paired=paired)[0]
        for paired in (True, False)
    )
    # As tuples of the same NaN: records compare field by field from Python 3.13 on.
    np.testing.assert_equal(astuple(without.interval()), astuple(with_them.interval()))
    assert len(without.values) == 0 and len(with_them.values) == (50 if images >= 20 else 0)


def test_a_share_of_few_images_is_resampled_whatever_its_trials() -> None:
    count = np.zeros(400)
    count[:3] = 4
    with_them, without = (
        Bootstrap(400, seed=0).replicate([(Share(count / 2, count), np.ones(400))], paired=paired)[0]
        for paired in (True, False)
    )
    assert with_them.interval().flag == without.interval().flag == "unstable"


def test_below_twenty_images_with_trials_there_are_points_only() -> None:
    assert statistics.MIN_IMAGES == 20
    for num_images, without, flag in ((19, 0, "few_images"), (20, 0, ""), (25, 6, "few_images"), (25, 5, "")):
        count = np.ones(num_images)
        count[:without] = 0
        hits = count * (np.arange(num_images) % 2)
        found = Bootstrap(num_images, seed=0, num_resamples=200).replicate([(Ratio(hits, count), count)])[0]
        assert found.images == num_images - without
        estimate = found.interval()
        assert estimate.flag == flag
        assert np.isnan(estimate.low) == np.isnan(estimate.high) == (flag != "")
        assert not np.isnan(estimate.value)


def test_flags_say_why_there_is_no_value_or_interval() -> None:
    def interval(point: float, values: list[float], trials: int = 5) -> Estimate:
        return Replicates(point, np.array(values), images=30, trials=trials).interval()

    assert interval(np.nan, [1.0] * 10).flag == "collapsed"
    assert interval(np.nan, [], trials=0).flag == "no_trials"
    assert interval(1.0, []).flag == "few_images"
    # One in a hundred undefined is borne, two are not.
    assert interval(1.0, [1.0] * 99 + [np.nan]).flag == ""
    assert interval(1.0, [1.0] * 99 + [np.nan]).high == 1.0
    # A value outside what its resamples reach is still in its interval.
    assert interval(2.0, [1.0] * 100) == Estimate(2.0, 1.0, 2.0, method="percentile")
    # Nothing is no minus nothing: tables would show -0.0.
    assert str(interval(0.0, [0.0] * 100).low) == "0.0"
    unstable = interval(1.0, [1.0] * 98 + [np.nan] * 2)
    assert unstable.flag == "unstable" and unstable.value == 1.0 and np.isnan(unstable.low)


def test_a_difference_is_collapsed_where_either_side_is() -> None:
    def replicates(point: float, images: int = 30, trials: int = 9) -> Replicates:
        return Replicates(point, np.full(10, point), images=images, trials=trials)

    assert replicates(0.5).minus(replicates(0.2)).interval() == Estimate(0.3, 0.3, 0.3, method="percentile")
    for one, two in ((np.nan, 0.5), (0.5, np.nan)):
        assert replicates(one).minus(replicates(two)).interval().flag == "collapsed"
    assert replicates(0.5).minus(replicates(np.nan, trials=0)).interval().flag == "no_trials"
    few = Replicates(0.5, np.empty(0), images=5, trials=9)
    assert replicates(0.5).minus(few).interval().flag == "few_images"
    assert replicates(0.5).minus(few).images == 5


def simulated(rng: np.random.Generator, num_images: int, patches: int) -> NDArray[np.float64]:
    """Hits per image with an image effect of standard deviation 1 on the logit."""
    probability = 1 / (1 + np.exp(-(0.5 + rng.standard_normal(num_images))))
    return rng.binomial(patches, probability).astype(float)


def test_intervals_cover_the_truth_and_patches_for_images_would_not() -> None:
    """60 images of 49 patches: the interval over images covers about 94 %, one over patches about half as often."""
    rng = np.random.default_rng(0)
    truth = float((1 / (1 + np.exp(-(0.5 + rng.standard_normal(2_000_000))))).mean())
    runs, num_images, patches = 2000, 60, 49
    bootstrap, count = Bootstrap(num_images, seed=0, num_resamples=400), np.full(num_images, float(patches))
    by_image = by_patch = 0
    for _ in range(runs):
        hits = simulated(rng, num_images, patches)
        found = bootstrap.replicate([(Ratio(hits, count), count)])[0].interval()
        by_image += found.low <= truth <= found.high
        share = hits.sum() / count.sum()
        low, high = np.quantile(rng.binomial(int(count.sum()), share, 400) / count.sum(), [0.025, 0.975])
        by_patch += low <= truth <= high
    assert 0.92 <= by_image / runs <= 0.97
    assert by_patch / runs < 0.6


def test_paired_differences_are_narrower() -> None:
    rng = np.random.default_rng(4)
    image = rng.standard_normal(80)
    count = np.full(80, 49.0)

    def hits(shift: float) -> NDArray[np.float64]:
        return rng.binomial(49, 1 / (1 + np.exp(-(image + shift)))).astype(float)

    first, second = hits(0.0), hits(0.3)

    def measure(values: NDArray[np.float64], seed: int) -> Replicates:
        return Bootstrap(80, seed=seed, num_resamples=500).replicate([(Ratio(values, count), count)])[0]

    paired = measure(second, 0).minus(measure(first, 0)).interval()
    unpaired = measure(second, 0).minus(measure(first, 1)).interval()
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)
    assert paired.value == pytest.approx((second.sum() - first.sum()) / count.sum())


def test_the_same_seed_gives_the_same_resamples_whatever_the_statistic() -> None:
    count = np.ones(30)
    hits = (np.arange(30) % 2).astype(float)
    one, two = (
        Bootstrap(30, seed=3, num_resamples=20).replicate([(Ratio(hits, count), count)])[0] for _ in range(2)
    )
    other = Bootstrap(30, seed=4, num_resamples=20).replicate([(Ratio(hits, count), count)])[0]
    assert np.array_equal(one.values, two.values)
    assert not np.array_equal(one.values, other.values)


def test_a_mean_product_of_strata_is_one_over_all_pairs_of_images() -> None:
    x, y, s, t = (np.random.default_rng(seed).integers(0, 5, (4, 3)).astype(float) for seed in range(4))
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    expected = sum(x[i] @ y[j] for i, j in pairs) / sum(s[i] @ t[j] for i, j in pairs)
    product = MeanProduct(x, y, s, t)
    assert product.evaluate(np.ones((4, 1)))[0] == pytest.approx(expected)
    assert product.value(product.totals()) == pytest.approx(expected)
