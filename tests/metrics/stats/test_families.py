"""Influences against numeric derivatives, and families against textbooks and plain loops."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates, with_crossed
from moeprobe.metrics.stats.chance import levels as chance
from moeprobe.metrics.stats.families import Difference, difference, judge
from moeprobe.metrics.stats.kappa import Kappa, MeanProduct
from moeprobe.metrics.stats.load import Entropy
from moeprobe.metrics.stats.statistic import MeanOf, Ratio, Share, Statistic, add
from moeprobe.metrics.stats.two_way import TwoWay
from tests.metrics.stats.trials import chance_of, chance_within

Array = NDArray[np.float64]


def choices(seed: int, num_images: int, patches: int = 5, codes: int = 3) -> dict[str, NDArray[np.int64]]:
    """Trials with an image effect; image 0 has none, position 0 only one image."""
    rng = np.random.default_rng(seed)
    image, position = np.divmod(np.arange(num_images * patches), patches)
    usual = rng.integers(codes, size=num_images)[image]
    reference, view = (
        np.where(rng.random(len(image)) < 0.5, usual, rng.integers(codes, size=len(image))) for _ in range(2)
    )
    keep = (rng.random(len(image)) < 0.8) & (image > 0) & ((position > 0) | (image == 1))
    columns = {"image": image, "position": position, "reference": reference, "view": view}
    return {name: column[keep] for name, column in columns.items()}


def all_statistics(seed: int, num_images: int) -> dict[str, Statistic]:
    made: dict[str, Any] = choices(seed, num_images)
    position = made.pop("position")
    same = made["reference"] == made["view"]
    match = Ratio(
        np.bincount(made["image"], weights=same, minlength=num_images).astype(float),
        np.bincount(made["image"], minlength=num_images).astype(float),
    )
    pooled = chance_of(**made, stratum=np.zeros_like(position), num_images=num_images)
    by_position = chance_of(**made, stratum=position, num_images=num_images)
    inside = chance_within(**made, tokens=(position, position // 2), num_images=num_images)
    histogram = np.zeros((num_images, 4))
    np.add.at(histogram, (made["image"], made["view"]), 1)
    trials = np.maximum(histogram.sum(1), 1)
    product = MeanProduct(histogram, histogram[::-1], 5 * trials, trials + 3)
    return {
        "match": match,
        "pooled": pooled,
        "position": by_position,
        "image": inside,
        "pooled κ": Kappa(match, pooled),
        "position κ": Kappa(match, by_position),
        "image κ": Kappa(match, inside),
        "mean product": product,
        "mean product κ": Kappa(match, product),
        "entropy": Entropy(histogram),
        "mean": MeanOf((match, Entropy(histogram))),
    }


@pytest.mark.parametrize("name", all_statistics(0, 12))
@pytest.mark.parametrize("seed", range(3))
def test_influence_is_the_derivative_by_the_weights(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chance, "EXACT_IN_SINGLE", 0)  # differences of 1e-5 need double precision
    num_images, step = 12, 1e-5
    statistic = all_statistics(seed, num_images)[name]
    weights = np.ones((num_images, 2 * num_images))
    weights[np.arange(num_images), np.arange(num_images)] += step
    weights[np.arange(num_images), num_images + np.arange(num_images)] -= step
    above, below = np.split(statistic.evaluate(weights), 2)
    numeric = (above - below) / (2 * step)
    influence = statistic.influence()
    assert np.abs(numeric).max() > 1e-3
    assert np.abs(influence - numeric).max() < 1e-6 * np.abs(numeric).max()
    assert np.abs(1.01 * influence - numeric).max() > 1e-3 * np.abs(numeric).max(), "cannot fail"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num_images=st.integers(4, 15))
def test_influences_add_up_to_nothing(seed: int, num_images: int) -> None:
    """Twice every weight is the same data: values depend on shares alone."""
    for name, statistic in all_statistics(seed, num_images).items():
        influence = statistic.influence()
        if not np.isnan(influence).any():
            assert abs(influence.sum()) < 1e-9, name


def test_a_mean_of_blocks_is_that_of_the_whole() -> None:
    numbers = np.random.default_rng(0).random((12, 4))

    def mean(rows: Array) -> MeanOf:
        return MeanOf((Ratio(rows[:, 0], rows[:, 1]), Ratio(rows[:, 2], rows[:, 3])))

    blocks = [mean(numbers[:5]), mean(numbers[5:])]
    totals = add(blocks[0].totals(), blocks[1].totals(), {})
    expected = (numbers[:, 0].sum() / numbers[:, 1].sum() + numbers[:, 2].sum() / numbers[:, 3].sum()) / 2
    assert blocks[0].value(totals) == pytest.approx(expected)
    influence = np.concatenate([block.influence(totals) for block in blocks])
    np.testing.assert_allclose(influence, mean(numbers).influence())


def test_no_value_no_influence() -> None:
    nothing = np.zeros(5)
    everywhere = np.zeros(5, dtype=np.int64)
    collapsed = chance_of(
        image=np.arange(5), reference=everywhere, view=everywhere, stratum=everywhere, num_images=5
    )
    match = Ratio(np.ones(5), np.ones(5))
    for statistic in (Ratio(nothing, nothing), Entropy(np.zeros((5, 3))), Kappa(match, collapsed)):
        assert np.isnan(statistic.influence()).all()
    assert (collapsed.influence() == 0).all()


def replicate(statistic: Statistic, num_images: int, *, num_resamples: int = 2000) -> Replicates:
    bootstrap = Bootstrap(num_images, seed=0, num_resamples=num_resamples)
    return bootstrap.replicate([(statistic, np.ones(num_images))])[0]


def paired(one: Statistic, other: Statistic, num_images: int) -> Difference:
    return difference(
        replicate(one, num_images), replicate(other, num_images), one.influence() - other.influence()
    )


def means(values: Array) -> Ratio:
    return Ratio(values, np.ones(len(values)))


def test_of_two_means_it_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(1)
    one = rng.standard_normal(60)
    other = one + 0.4 * rng.standard_normal(60) + 0.1
    found = paired(means(one), means(other), 60)
    textbook = stats.ttest_rel(one, other)
    assert found.standard_error == pytest.approx((one - other).std(ddof=1) / np.sqrt(60), rel=1e-12)
    judged = judge([found])[0]
    assert judged.p == judged.p_holm == pytest.approx(textbook.pvalue, rel=1e-9)
    # One cell: the simultaneous interval is the t interval, but for the chance of 2,000 resamples.
    low, high = textbook.confidence_interval(0.95)
    assert judged.sim_high - judged.sim_low == pytest.approx(high - low, rel=0.05)
    assert (judged.sim_low + judged.sim_high) / 2 == pytest.approx(found.replicates.point, abs=1e-12)


def family(num_images: int, cells: int, seed: int = 0) -> list[Difference]:
    rng = np.random.default_rng(seed)
    image = rng.standard_normal(num_images)
    return [
        paired(
            means(image + rng.standard_normal(num_images) + 0.2 * cell),
            means(image + rng.standard_normal(num_images)),
            num_images,
        )
        for cell in range(cells)
    ]


def test_the_simultaneous_interval_by_loops() -> None:
    num_images, members = 50, family(50, 4)
    largest = []
    for resample in range(2000):
        deviations = []
        for member in members:
            spread = member.standard_error * np.sqrt(49 / 50)
            deviations.append(abs(member.replicates.values[resample] - member.replicates.point) / spread)
        largest.append(max(deviations))
    factor = np.quantile(largest, 0.95) * stats.t.ppf(0.975, num_images - 1) / stats.norm.ppf(0.975)
    for member, judged in zip(members, judge(members), strict=True):
        assert judged.sim_low == pytest.approx(member.replicates.point - factor * member.standard_error)
        assert judged.sim_high == pytest.approx(member.replicates.point + factor * member.standard_error)
        assert judged.detectable == pytest.approx((factor + 0.8416212) * member.standard_error)
        assert judged.family_cells == 4
        alone = judge([member])[0]
        assert alone.sim_high - alone.sim_low < 0.95 * (judged.sim_high - judged.sim_low)


@pytest.mark.parametrize("looks", [1, 10])
def test_means_over_perturbations_hold_together_by_sidak(looks: int) -> None:
    """Resamples of images say nothing of perturbations: t with the degrees of freedom of either mean."""
    rng, members, estimates = np.random.default_rng(6), [], []
    for perturbations in (4, 6):
        crossed = 0.3 + rng.standard_normal((perturbations, 1)) + rng.standard_normal((perturbations, 30))
        estimates.append(TwoWay.of(crossed))
        mean = Replicates(estimates[-1].value, rng.standard_normal(100), images=30, trials=30)
        members.append(Difference(with_crossed(mean, crossed), estimates[-1].error))
    alone = (1 - 0.05 / looks) ** 0.5
    judged = judge(members, looks=looks)
    for estimate, found in zip(estimates, judged, strict=True):
        t = stats.t.isf((1 - alone) / 2, estimate.freedom)
        reach = t * estimate.error
        assert (found.sim_low, found.sim_high) == pytest.approx(
            (estimate.value - reach, estimate.value + reach)
        )
        assert found.detectable == pytest.approx((t + stats.norm.ppf(0.8)) * estimate.error)
        assert found.p == pytest.approx(
            2 * stats.t.sf(abs(estimate.value) / estimate.error, estimate.freedom)
        )
        assert found.family_cells == 2
    smaller, larger = sorted((found.p, found.p_holm) for found in judged)
    assert smaller[1] == pytest.approx(min(2 * smaller[0] * looks, 1))
    assert larger[1] == pytest.approx(min(max(larger[0], 2 * smaller[0]) * looks, 1))


def of_p(p: float, num_images: int = 40) -> Difference:
    """A difference whose t test gives p."""
    point = stats.t.isf(p / 2, num_images - 1)
    values = point + np.random.default_rng(0).standard_normal(100)
    return Difference(Replicates(point, values, images=num_images, trials=num_images), 1.0)


def identical(num_images: int = 40) -> Difference:
    return Difference(Replicates(0.0, np.zeros(100), images=num_images, trials=num_images), 0.0)


def collapsed(num_images: int = 40) -> Difference:
    return Difference(Replicates(np.nan, np.full(100, np.nan), images=num_images, trials=9), np.nan)


@pytest.mark.parametrize("cells", [1, 4])
def test_the_simultaneous_interval_of_right_and_wrong_answers_is_no_narrower_than_that_of_one(
    cells: int,
) -> None:
    """Both allow for an image more than was seen to differ; measured with that, resamples would vary too little."""
    right = np.ones((40, cells))
    right[np.arange(cells), np.arange(cells)] = 0
    every = np.ones(40)
    members = [paired(Share(every, every), Share(one, every), 40) for one in right.T]
    for member, judged in zip(members, judge(members), strict=True):
        alone = member.replicates.interval()
        assert judged.sim_low < alone.low + 0.01 and judged.sim_high > alone.high - 0.01
    deviations = [np.abs(one.replicates.values - 1 / 40) / (np.sqrt(39 / 40) / 40) for one in members]
    factor = np.quantile(np.max(deviations, axis=0), 0.95) * stats.t.isf(0.025, 39) / stats.norm.isf(0.025)
    # One image in 40 is as much as the error over images, so together they come to its root of two.
    assert judged.sim_high - 1 / 40 == pytest.approx(factor * np.sqrt(2) / 40, rel=0.02)


def test_a_number_of_one_token_per_image_is_not_taken_for_right_or_wrong() -> None:
    """As the cosine of a prefix token's weights: it is judged as it would be of two tokens that are alike."""
    rng, one = np.random.default_rng(0), np.ones(100)
    before = 0.9 + 0.01 * rng.random(100)
    after = before + 0.005 + 0.001 * rng.standard_normal(100)
    found = [
        paired(Share(after * tokens, one * tokens), Share(before * tokens, one * tokens), 100)
        for tokens in (1, 2)
    ]
    assert found[0].standard_error == pytest.approx(found[1].standard_error)
    assert judge(found[:1])[0].p < 1e-6


def test_holm_by_hand() -> None:
    """.01 × 3 = .03; .03 × 2 = .06; .04 × 1 = .04, but no less than the one before: .06. Others are no test."""
    members = [of_p(0.01), identical(), of_p(0.04), collapsed(), of_p(0.03)]
    judged = judge(members)
    assert [item.p for item in judged] == pytest.approx([0.01, 1, 0.04, np.nan, 0.03], nan_ok=True)
    assert [item.p_holm for item in judged] == pytest.approx([0.03, 1, 0.06, np.nan, 0.06], nan_ok=True)
    assert judge([of_p(0.6), of_p(0.7)])[0].p_holm == 1
    assert {item.family_cells for item in judged} == {3}


def test_what_is_the_same_or_constant_or_without_a_first_order() -> None:
    rng = np.random.default_rng(2)
    values = rng.random(30)
    same, constant = paired(means(values), means(values), 30), paired(means(values + 1), means(values), 30)
    assert same.identical and not constant.identical
    judged = judge([same, constant])
    assert (judged[0].sim_low, judged[0].sim_high, judged[0].p) == (0, 0, 1)
    assert (judged[1].sim_low, judged[1].sim_high) == pytest.approx((1, 1)) and np.isnan(judged[1].p)
    # Two even loads: the entropy is at its top, where its derivative vanishes, but not its resamples.
    even = np.eye(2)[np.arange(30) % 2]
    flat = paired(Entropy(even), Entropy(even[rng.permutation(30)]), 30)
    assert flat.standard_error == 0 and flat.replicates.point == 0 and not flat.identical
    assert np.isnan(judge([flat])[0].sim_low)


@pytest.mark.slow
@pytest.mark.promise
def test_the_rounding_of_gates_is_no_difference_and_one_token_of_many_is() -> None:
    rng = np.random.default_rng(3)
    values = rng.random(400)
    rounded = paired(means(values + 1e-7 * rng.random(400)), means(values), 400)
    assert rounded.identical and rounded.replicates.point > 0
    judged = judge([rounded])[0]
    assert judged.p == 1 and judged.sim_low == judged.sim_high
    # One of 196 patches in one of 20,000 images: 2.6e-7 of them all.
    one = np.eye(1, 20_000)[0] / 196
    other = paired(means(0.5 + one), means(np.full(20_000, 0.5)), 20_000)
    assert 0 < other.replicates.point < 1e-6 and not other.identical


def test_few_images_and_undefined_resamples_have_no_interval() -> None:
    few = paired(means(np.arange(19.0)), means(np.arange(19.0)[::-1] ** 2), 19)
    unstable = of_p(0.5)
    unstable.replicates.values[:2] = np.nan
    borne = of_p(0.5)
    borne.replicates.values[0] = np.nan
    judged = judge([few, unstable, borne])
    assert [np.isnan(item.sim_low) for item in judged] == [True, True, False]
    assert [np.isnan(item.p) for item in judged] == [True, True, False]


def routed(rng: np.random.Generator, num_images: int, keep: float) -> Statistic:
    """κ of 16 patches of 4 experts; how often a patch keeps its expert has an image effect, and so has the load."""
    probability = 1 / (1 + np.exp(-(keep + rng.standard_normal(num_images))))
    favorite = rng.integers(4, size=num_images)
    image = np.repeat(np.arange(num_images), 16)
    reference = np.where(rng.random(len(image)) < 0.3, favorite[image], rng.integers(4, size=len(image)))
    kept = rng.random(len(image)) < probability[image]
    view = np.where(kept, reference, (reference + rng.integers(1, 4, size=len(image))) % 4)
    hits = np.bincount(image, weights=reference == view, minlength=num_images).astype(float)
    match = Ratio(hits, np.full(num_images, 16.0))
    chance = chance_of(
        image=image, reference=reference, view=view, stratum=np.zeros_like(image), num_images=num_images
    )
    return Kappa(match, chance)


def bootstraps(runs: int, num_images: int) -> Iterator[Bootstrap]:
    """One for each experiment, with the weights of its resamples for ten in turn: their data are other data."""
    for number in range(runs):
        if number % 10 == 0:
            bootstrap = Bootstrap(num_images, seed=number, num_resamples=400)
        yield bootstrap


def truth(keep: float) -> float:
    """Mean match over all images there could be, their effects being normal."""
    effects = stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    return float((1 / (1 + np.exp(-(keep + effects)))).mean())


@pytest.mark.slow
@pytest.mark.parametrize("num_images", [100, 200])
def test_intervals_cover_the_truth_and_patches_taken_for_images_do_not(num_images: int) -> None:
    """1,000 experiments of a family of six: match of two routers with a known difference and an image effect.

    Each cell's interval covers 93 to 97 % of the time. All six at once are covered 93 % or more by the simultaneous
    intervals, and less by their own ones; an interval that takes patches for independent covers far less still.
    """
    runs, patches = 1000, 49
    rng = np.random.default_rng(num_images)
    expected = truth(0.8) - truth(0.5)
    count = np.full(num_images, float(patches))
    single = whole = each = by_patch = 0
    for bootstrap in bootstraps(runs, num_images):
        image = rng.standard_normal(num_images)
        # The routers differ more on some images than on others.
        another = 0.6 * image + 0.8 * rng.standard_normal(num_images)
        members = []
        for _ in range(6):
            hits = [
                rng.binomial(patches, 1 / (1 + np.exp(-(keep + effect)))).astype(float)
                for keep, effect in ((0.5, image), (0.8, another))
            ]
            one, other = (Ratio(side, count) for side in hits)
            first, second = bootstrap.replicate([(one, count), (other, count)])
            members.append(difference(second, first, other.influence() - one.influence()))
        whole += all(item.sim_low <= expected <= item.sim_high for item in judge(members))
        covered = [
            interval.low <= expected <= interval.high
            for interval in (member.replicates.interval() for member in members)
        ]
        single, each = single + covered[0], each + all(covered)
        shares = [side.sum() / count.sum() for side in hits]
        error = np.sqrt(sum(share * (1 - share) for share in shares) / count.sum())
        by_patch += abs(members[-1].replicates.point - expected) <= 1.96 * error
    print(f"{num_images} images: {single=} {whole=} {each=} {by_patch=} of {runs}")
    assert 0.93 <= single / runs <= 0.97
    assert whole / runs >= 0.93
    assert each / runs < 0.93
    assert by_patch / runs < 0.7


@pytest.mark.slow
def test_kappa_is_covered_too_and_a_planted_difference_is_found() -> None:
    """1,000 experiments of 100 images: κ of two routers. Truth: that of 200,000 images."""
    runs, num_images = 1000, 100
    rng = np.random.default_rng(7)
    everything = np.ones((200_000, 1))
    expected = np.diff([routed(rng, 200_000, keep).evaluate(everything)[0] for keep in (0.5, 1.2)])[0]
    trials, covered, found = np.ones(num_images), 0, 0
    for bootstrap in bootstraps(runs, num_images):
        sides = [routed(rng, num_images, keep) for keep in (0.5, 1.2)]
        one, other = bootstrap.replicate([(side, trials) for side in sides])
        judged = judge([difference(other, one, sides[1].influence() - sides[0].influence())])[0]
        covered += judged.sim_low <= expected <= judged.sim_high
        found += judged.sim_low > 0
    print(f"{covered=} {found=} of {runs}")
    assert 0.93 <= covered / runs <= 0.97
    assert found / runs > 0.9


def test_looks_widen_intervals_by_their_share_of_the_level() -> None:
    """Two equal cells: the quantile at 1 - 5 % / 10 of the resamples, and Šidák's by t where they say nothing of it."""
    members = family(50, 2)
    spread = [member.standard_error * np.sqrt(49 / 50) for member in members]
    largest = np.max(
        [
            np.abs(member.replicates.values - member.replicates.point) / error
            for member, error in zip(members, spread, strict=True)
        ],
        axis=0,
    )
    of_ten = np.quantile(largest, 0.995) * stats.t.ppf(0.9975, 49) / stats.norm.ppf(0.9975)
    # Of 2,000 resamples, 0.05 are beyond: the t quantile of two cells in 2,000 looks.
    of_many = stats.t.ppf(1 - (1 - (1 - 0.05 / 2000) ** 0.5) / 2, 49)
    for looks, factor in ((10, of_ten), (2000, of_many)):
        for member, judged in zip(members, judge(members, looks=looks), strict=True):
            reach = judged.sim_high - member.replicates.point
            assert reach == pytest.approx(factor * member.standard_error, rel=1e-9)
            assert judged.detectable == pytest.approx((factor + 0.8416212) * member.standard_error)
    alone, in_ten = judge(members), judge(members, looks=10)
    assert [judged.p for judged in in_ten] == [judged.p for judged in alone]
    assert [judged.p_holm for judged in in_ten] == [min(10 * judged.p_holm, 1) for judged in alone]


def false_alarms(series: int, looks: int, *, divided: bool) -> float:
    """Share of series in which a checkpoint that is as good as the reference is called worse in some look.

    Each look has a checkpoint of its own, and all have the same reference on the same images.
    """
    num_images, cells, alarms = 60, 3, 0
    rng = np.random.default_rng(7)
    for _ in range(series):
        reference, worse = rng.standard_normal((cells, num_images)), False
        for _ in range(looks):
            image = rng.standard_normal(num_images)
            members = [
                paired(means(image + rng.standard_normal(num_images)), means(cell), num_images)
                for cell in reference
            ]
            judged = judge(members, looks=looks if divided else 1)
            worse |= any(member.sim_high < 0 for member in judged)
        alarms += worse
    return alarms / series


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.resamples
def test_a_series_of_equal_checkpoints_has_few_false_alarms() -> None:
    """One side of 5 % in the whole series; each look alone alarms far more often. Binomial error of 300: 0.009."""
    divided, alone = false_alarms(300, 10, divided=True), false_alarms(100, 10, divided=False)
    print(f"divided {divided:.3f}, each alone {alone:.3f}")
    assert divided <= 0.025 + 3 * 0.009 and alone > 0.1
