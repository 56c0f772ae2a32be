"""From sums to lines of a table: denominators, flags, and paired differences."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe.errors import UserError
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.statistic import Ratio, Share
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table

ABOUT = About("run", "digits", "test", 5, aligned=True, train_seeds={"a": 1}, groups={"b": "g"})
PATCH = Cell("blocks.1", "r", 1, "noise", 0.1, 0, "patch")
Choices = NDArray[np.int64]


def sums(reference: Choices, view: Choices) -> dict[str, NDArray[np.generic]]:
    """Columns of one choice ``(n, P)`` per patch; -1 = no trial."""
    trial = (reference >= 0) & (view >= 0)
    return {
        "trials": trial.sum(1),
        "top1_match": ((reference == view) & trial).sum(1),
        "reference_selected": np.where(trial, reference, -1)[..., None].astype(np.int16),
        "view_selected": np.where(trial, view, -1)[..., None].astype(np.int16),
    }


def choices(seed: int, num_images: int = 30, agreement: float = 0.6) -> tuple[Choices, Choices]:
    rng = np.random.default_rng(seed)
    reference = rng.integers(0, 4, (num_images, 6))
    return reference, np.where(
        rng.random(reference.shape) < agreement, reference, rng.integers(0, 4, reference.shape)
    )


def table(
    found: dict[str, dict[Cell, dict[str, NDArray[np.generic]]]], names: list[str] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    parts = []
    for checkpoint, placed in found.items():
        accumulator = Accumulator()
        for cell, columns in placed.items():
            count = len(next(iter(columns.values())))
            accumulator.add(cell, names or [f"i/{image:03d}" for image in range(count)], columns)
        parts.append(image_table(accumulator, checkpoint=checkpoint))
    return summarize(of_table(concatenate(parts)), analyses=(Match(), LoadAnalysis()), run_info=ABOUT)


def line(found: pd.DataFrame | None, **where: object) -> pd.Series:
    assert found is not None
    for column, value in where.items():
        found = found[found[column] == value]
    assert len(found) == 1, found
    return found.iloc[0]


def test_a_line_says_what_it_is_about() -> None:
    reference, view = choices(0)
    found, comparison = table({"a": {PATCH: sums(reference, view)}})
    assert comparison is None
    row = line(found, metric="top1_match")
    said = {
        name: row[name] for name in ("run", "checkpoint", "layer", "router", "view", "tokens", "null", "flag")
    }
    assert said == {
        "run": "run", "checkpoint": "a", "layer": "blocks.1", "router": "r", "view": "noise", "tokens": "patch",
        "null": "", "flag": "",
    }  # fmt: skip
    assert (row["severity"], row["top_k"], row["train_seed"], row["seed"]) == (0.1, 1, 1, 5)
    assert (row["images"], row["trials"]) == (30, 180)
    assert row["value"] == pytest.approx((reference == view).mean())
    assert row["ci_low"] < row["value"] < row["ci_high"]
    assert sorted(found["metric"] + found["null"]) == [
        "top1_match", "top1_match_chanceimage", "top1_match_chancepooled", "top1_match_chanceposition",
        "top1_match_kappaimage", "top1_match_kappapooled", "top1_match_kappaposition",
    ]  # fmt: skip


def test_kappa_is_a_function_of_the_other_two() -> None:
    found, _ = table({"a": {PATCH: sums(*choices(1))}})
    match = line(found, metric="top1_match")["value"]
    for null in ("pooled", "position", "image"):
        chance = line(found, metric="top1_match_chance", null=null)["value"]
        kappa = line(found, metric="top1_match_kappa", null=null)["value"]
        assert kappa == pytest.approx((match - chance) / (1 - chance), rel=1e-12)
        assert kappa < match


def test_the_interval_is_that_of_the_seed() -> None:
    reference, view = choices(2)
    found = line(table({"a": {PATCH: sums(reference, view)}})[0], metric="top1_match")
    hits, count = (reference == view).sum(1).astype(float), np.full(30, 6.0)
    expected = Bootstrap(30, seed=5).replicate([(Share(hits, count), count)])[0].interval()
    assert (found["ci_low"], found["ci_high"]) == (expected.low, expected.high)


def test_lines_do_not_depend_on_the_order_of_the_images() -> None:
    reference, view = choices(3)
    names = [f"i/{image:03d}" for image in range(30)]
    order = np.random.default_rng(0).permutation(30)
    one, _ = table({"a": {PATCH: sums(reference, view)}}, names)
    two, _ = table({"a": {PATCH: sums(reference[order], view[order])}}, [names[image] for image in order])
    pd.testing.assert_frame_equal(one, two, check_exact=True)


def test_a_collapsed_router_has_no_kappa() -> None:
    same = np.full((30, 6), 2)
    found, comparison = table({"a": {PATCH: sums(*choices(0))}, "b": {PATCH: sums(same, same)}})
    for null in ("pooled", "position", "image"):
        row = line(found, checkpoint="b", metric="top1_match_kappa", null=null)
        assert np.isnan(row["value"]) and np.isnan(row["ci_low"]) and row["flag"] == "collapsed"
        assert line(comparison, metric="top1_match_kappa", null=null)["flag"] == "collapsed"
        assert line(found, checkpoint="b", metric="top1_match_chance", null=null)["value"] == 1
    assert line(found, checkpoint="b", metric="top1_match")["value"] == 1
    assert line(comparison, metric="top1_match")["flag"] == ""


def test_without_a_single_trial_nothing_is_said() -> None:
    nowhere = np.full((30, 6), -1)
    found, comparison = table({"a": {PATCH: sums(*choices(0))}, "b": {PATCH: sums(nowhere, nowhere)}})
    rows = found[found["checkpoint"] == "b"]
    assert set(rows["flag"]) == {"no_trials"} and rows["value"].isna().all() and set(rows["trials"]) == {0}
    assert comparison is not None and set(comparison["flag"]) == {"no_trials"}


def test_images_without_a_trial_do_not_count_towards_the_twenty() -> None:
    reference, view = choices(4)
    view[:11] = -1
    found, _ = table({"a": {PATCH: sums(reference, view)}})
    assert set(found["images"]) == {19} and set(found["flag"]) == {"few_images"}
    assert found["ci_low"].isna().all() and found["value"].notna().all()


def test_a_collapse_in_some_resamples_leaves_no_interval() -> None:
    reference = np.zeros((30, 6), dtype=np.int64)
    reference[0] = np.arange(6) % 2  # without this image, absent from a third of the resamples, c = 1
    found, _ = table({"a": {PATCH: sums(reference, reference)}})
    row = line(found, metric="top1_match_kappa", null="pooled")
    assert row["flag"] == "unstable" and row["value"] == pytest.approx(1) and np.isnan(row["ci_low"])


def test_differences_are_paired_and_from_the_first() -> None:
    reference, weak = choices(5, num_images=60, agreement=0.5)
    better = np.where(np.random.default_rng(9).random(weak.shape) < 0.2, reference, weak)
    found, comparison = table({"a": {PATCH: sums(reference, weak)}, "b": {PATCH: sums(reference, better)}})
    row = line(comparison, metric="top1_match")
    assert (row["checkpoint"], row["reference"], row["group"]) == ("b", "a", "g")
    one, two = (line(found, checkpoint=name, metric="top1_match") for name in "ab")
    assert row["value"] == pytest.approx(two["value"] - one["value"]) and row["value"] > 0
    unpaired = np.hypot(one["ci_high"] - one["ci_low"], two["ci_high"] - two["ci_low"])
    assert row["ci_high"] - row["ci_low"] < 0.8 * unpaired
    count = np.full(60, 6.0)
    values = [
        Bootstrap(60, seed=5)
        .replicate([(Ratio((reference == side).sum(1).astype(float), count), count)])[0]
        .values
        for side in (better, weak)
    ]
    beyond = proportions.tail(60)
    assert (row["ci_low"], row["ci_high"]) == tuple(np.quantile(values[0] - values[1], [beyond, 1 - beyond]))


def test_the_same_in_every_image_is_zero_and_of_shares_not_known_to_be_zero_everywhere() -> None:
    """30 images of which none differs do not exclude a share of t² / (30 + t²) that does."""
    columns = sums(*choices(6))
    found, comparison = table({"a": {PATCH: columns}, "b": {PATCH: columns}})
    assert comparison is not None
    assert (comparison["value"] == 0).all() and (comparison["ci_low"] == -comparison["ci_high"]).all()
    reach = stats.t.ppf(0.975, 29) ** 2 / (30 + stats.t.ppf(0.975, 29) ** 2)
    assert line(comparison, metric="top1_match")["ci_high"] == pytest.approx(reach)
    chance = line(found, checkpoint="a", metric="top1_match_chance", null="position")["value"]
    kappa = line(comparison, metric="top1_match_kappa", null="position")
    assert kappa["ci_high"] == pytest.approx(reach / (1 - chance))
    assert line(comparison, metric="top1_match_chance", null="pooled")["ci_high"] == 0


def test_another_router_can_be_compared_where_metrics_are_the_same() -> None:
    other = Cell("blocks.1", "another", 1, "noise", 0.1, 0, "patch")
    elsewhere = Cell("blocks.2", "r", 1, "noise", 0.1, 0, "patch")
    placed = {other: sums(*choices(1)), elsewhere: sums(*choices(2))}
    _, comparison = table({"a": {PATCH: sums(*choices(0))}, "b": placed})
    assert line(comparison, metric="top1_match")["router"] == "another"
    assert comparison is not None and set(comparison["layer"]) == {"blocks.1"}


def test_severities_and_missing_severities_are_compared_with_their_own() -> None:
    cells = [Cell("blocks.1", "r", 1, "noise", severity, 0, "patch") for severity in (0.0, 0.1, float("nan"))]
    one = {cell: sums(*choices(number)) for number, cell in enumerate(cells)}
    found, comparison = table({"a": one, "b": one})
    assert len(found) == 2 * 3 * 7
    assert comparison is not None and len(comparison) == 3 * 7
    assert (comparison["value"] == 0).all()
    assert comparison["severity"].isna().sum() == 7


def test_different_images_are_not_compared() -> None:
    with pytest.raises(UserError, match="b and a were probed on different images"):
        table({"a": {PATCH: sums(*choices(0))}, "b": {PATCH: sums(*choices(0, num_images=29))}})


def test_data_with_one_name_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are kept by name: an assertion ended such a run after its first batch."""
    from moeprobe.inputs.data.digits import Digits
    from moeprobe.inputs.data.readers.naming import open_data

    assert len(set(open_data("digits").image_ids)) == len(open_data("digits"))

    def renamed(self: Digits, **_: object) -> None:
        self.image_ids = ["test/1", "test/2", "test/1"]

    monkeypatch.setattr(Digits, "__init__", renamed)
    with pytest.raises(UserError, match="digits holds 2 examples called 'test/1'"):
        open_data("digits")
