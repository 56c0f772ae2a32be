"""The mean of any corruption: its interval by hand, its differences, and what it covers in simulated experiments."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe import api
from moeprobe.inputs.corruptions import MEAN, MEAN_OF_ANY, STANDARD
from moeprobe.judging.differences import Judging, compare_values
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.statistic import standard_error
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.probes.corruptions.measure import mean_values, means_of
from moeprobe.results.sums import Cell
from moeprobe.results.values import CellValues
from tests.commands import Trained
from tests.judging.test_differences import ABOUT

NAME = NumberName("accuracy", "")
# Part of the spread of an answer's hardness that is the corruption's, and that is the image's.
OF_KIND, OF_IMAGE = 0.5, 0.7


def cells(checkpoint: str, right: NDArray[np.float64]) -> list[CellValues]:
    """Return the values of a checkpoint under each corruption, of answers ``(P, n)``."""
    values = []
    for kind, of_kind in zip(STANDARD, right, strict=False):
        n, influence = len(of_kind), (of_kind - of_kind.mean()) / len(of_kind)
        number = Replicates(
            point=float(of_kind.mean()),
            values=np.empty(0),
            images=n,
            trials=n,
            error=standard_error(influence, n),
            influence=influence,
        )
        cell = Cell("", "", 0, kind, 3.0, 0, "")
        names = [f"{image:04d}" for image in range(n)]
        values.append(CellValues(checkpoint, cell, names, {NAME: number}, {NAME: influence}, False, None, n))
    return values


def means(*checkpoints: list[CellValues]) -> dict[str, list[CellValues]]:
    """Return the means over all corruptions, by their view."""
    kinds = [values.cell.view for values in checkpoints[0]]
    overall = [
        mean
        for mean in means_of(kinds, [3.0])
        if mean.view in (MEAN, MEAN_OF_ANY) and mean.severity != mean.severity
    ]
    return {values[0].cell.view: values for values in mean_values(checkpoints, means=overall, baseline=None)}


def answers(rng: np.random.Generator, kinds: int, images: int) -> NDArray[np.float64]:
    """Return answers ``(P, n)``, of which 0.7 are right: corruptions and images are more or less hard."""
    hardness = OF_KIND * rng.standard_normal((kinds, 1)) + OF_IMAGE * rng.standard_normal((1, images))
    rest = np.sqrt(1 - OF_KIND**2 - OF_IMAGE**2) * rng.standard_normal((kinds, images))
    return (hardness + rest < stats.norm.ppf(0.7)).astype(float)


def test_the_interval_is_over_corruptions_and_images() -> None:
    right = answers(np.random.default_rng(0), 6, 80)
    found = means(cells("a", right))
    any_of, these = (found[view][0].numbers[NAME] for view in (MEAN_OF_ANY, MEAN))
    low, high = TwoWay.of(right).ends()
    interval = any_of.interval()
    assert any_of.point == these.point == pytest.approx(right.mean())
    assert (interval.low, interval.high) == pytest.approx((max(low, 0.0), min(high, 1.0)))
    assert interval.method == "crossed"
    # Over images alone, for these corruptions.
    reach = critical(80) * right.mean(0).std(ddof=1) / np.sqrt(80)
    assert these.interval().high - these.point == pytest.approx(reach)
    assert interval.high - interval.low > 2 * reach


def test_a_difference_is_judged_by_that_interval() -> None:
    """One model is better by as much under every corruption; another one under two of eight alone."""
    rng = np.random.default_rng(1)
    first = answers(rng, 8, 100)
    everywhere = np.where(rng.random(first.shape) < 0.4, 1.0, first)
    somewhere = first.copy()
    somewhere[:2] = 1.0
    for second, word in ((everywhere, "higher"), (somewhere, "no significant difference")):
        found = means(cells("a", first), cells("b", second))
        judging = Judging()
        for view in (MEAN, MEAN_OF_ANY):
            judging.add(compare_values(found[view][1], found[view][0], ABOUT, combined=True))
        these, any_of = judging.rows()
        estimate = TwoWay.of(second - first)
        assert (any_of["sim_low"], any_of["sim_high"]) == pytest.approx(estimate.ends())
        assert any_of["se"] == pytest.approx(estimate.error)
        assert any_of["verdict"] == word and these["verdict"] == "higher"
        t = estimate.value / estimate.error
        assert any_of["p"] == pytest.approx(2 * stats.t.sf(t, estimate.freedom))


@pytest.mark.parametrize("kinds", [1, 2])
def test_two_corruptions_are_no_sample(kinds: int) -> None:
    assert MEAN_OF_ANY not in means(cells("a", answers(np.random.default_rng(0), kinds, 40)))


def test_without_an_interval_there_is_no_row() -> None:
    few = answers(np.random.default_rng(0), 5, 19)
    assert not means(cells("a", few))[MEAN_OF_ANY][0].numbers
    assert not means(cells("a", np.ones((5, 40))))[MEAN_OF_ANY][0].numbers


@pytest.mark.parametrize("kinds", [4, 15])
def test_it_covers_other_corruptions_and_images_alone_do_not(kinds: int) -> None:
    """500 experiments of 100 images; the error of a share is 0.01. The truth is the mean over all there could be."""
    rng, covered = np.random.default_rng(kinds), dict.fromkeys((MEAN_OF_ANY, MEAN), 0)
    for _ in range(500):
        for view, (values,) in means(cells("a", answers(rng, kinds, 100))).items():
            interval = values.numbers[NAME].interval()
            covered[view] += interval.low <= 0.7 <= interval.high
    print(f"{kinds} corruptions: {covered[MEAN_OF_ANY] / 500:.3f}; images alone {covered[MEAN] / 500:.3f}")
    assert 0.92 <= covered[MEAN_OF_ANY] / 500 <= 0.985
    assert covered[MEAN] / 500 < 0.75


@pytest.mark.slow
def test_a_run_has_the_row_and_says_what_it_is_for(trained: Trained) -> None:
    kinds = ("fog", "snow", "contrast")
    found = api.corruptions(
        list(trained.values()), corruptions=kinds, severities=(3,), limit=24, controls=False
    )
    assert found.comparison is not None
    for table in (found.table, found.comparison):
        rows = table[(table["view"] == MEAN_OF_ANY) & table["layer"].ne("")]
        assert len(rows) and set(rows["interval"]) == {"crossed"} and rows["severity"].isna().all()
        mean = table[(table["view"] == MEAN) & table["severity"].isna()]
        keys = ["checkpoint", "layer", "tokens", "metric", "null"]
        both = rows.merge(mean, on=keys, suffixes=("", "_mean"))
        assert len(both) == len(rows) and np.allclose(both["value"], both["value_mean"])
    assert "for others like them." in found._repr_html_()
