"""Verdicts on made-up sums whose truth is known."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from numpy.typing import NDArray

from moeprobe.cli.front.tables import comparison_footing, comparison_tables, gate_outcome
from moeprobe.errors import UserError
from moeprobe.judging import differences, words
from moeprobe.judging.differences import pairs
from moeprobe.judging.summarize import summarize
from moeprobe.judging.words import NO_DIFFERENCE, NO_INTERVAL
from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.mismatch import MismatchAnalysis, Scores
from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.families import Difference, Evidence, Judged
from moeprobe.probes.corruptions.measure import Mean, mean_values
from moeprobe.results.columns import UNJUDGED
from moeprobe.results.figures.forest import draw
from moeprobe.results.palette import colors
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import COLUMNS, COMPARISON_COLUMNS, concatenate, image_table
from moeprobe.results.values import Evaluator
from moeprobe.studies.compare import Comparison
from moeprobe.studies.gate import Gate

ABOUT = About("run", "digits", "test", 5, aligned=True, train_seeds={}, groups={})
ANALYSES = (Match(), LoadAnalysis(), Output())
Columns = dict[str, NDArray[Any]]


def cell(layer: str = "blocks.1", severity: float = 0.1) -> Cell:
    return Cell(layer, "r", 1, "noise", severity, 0, "patch")


def routed(
    seed: int, *, num_images: int = 100, keep: float = 0.6, experts: int = 4, reference_seed: int = 0
) -> Columns:
    """Six patches of an image keep their expert with probability ``keep``; the others move to another."""
    reference = np.random.default_rng(reference_seed).integers(0, experts, (num_images, 6))
    rng = np.random.default_rng(seed)
    moved = (reference + rng.integers(1, max(experts, 2), reference.shape)) % experts
    view = np.where(rng.random(reference.shape) < keep, reference, moved)
    return {
        "trials": np.full(num_images, 6),
        "top1_match": (reference == view).sum(1),
        "reference_selected": reference[..., None].astype(np.int16),
        "view_selected": view[..., None].astype(np.int16),
        "load": np.stack([(view == expert).sum(1) for expert in range(4)], 1),
    }


def answered(seed: int, share: float, num_images: int = 100) -> Columns:
    right = np.random.default_rng(seed).random(num_images) < share
    ones = np.ones(num_images, dtype=np.int64)
    return {"labelled": ones, "predicted": ones, "accuracy": right.astype(np.int64), "loss": 1.0 - right}


def compare(
    found: dict[str, dict[Cell, Columns]],
    *,
    names: list[str] | None = None,
    margin: float = 0.02,
    together: str | None = None,
    analyses: Sequence[Any] = ANALYSES,
) -> pd.DataFrame:
    parts = []
    for checkpoint, placed in found.items():
        accumulator = Accumulator()
        for place, columns in placed.items():
            count = len(next(iter(columns.values())))
            ids = [f"{image:03d}" for image in range(count)]
            accumulator.add(place, (names or ids) if checkpoint == "b" else ids, columns)
        parts.append(image_table(accumulator, checkpoint=checkpoint))
    first, *others = found
    return differences.compare(
        of_table(concatenate(parts)),
        analyses=analyses,
        run_info=ABOUT,
        selected_pairs=[(other, first) for other in others],
        margin=margin,
        together=together,
    )


def only(table: pd.DataFrame, **where: object) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def sentence(table: pd.DataFrame, **where: object) -> str:
    return str(only(differences.sentences(table), **where)["sentence"])


def test_values_and_own_intervals_are_those_of_the_probe() -> None:
    found = {"a": {cell(): routed(1)}, "b": {cell(): routed(2, keep=0.8)}}
    table = compare(found)
    parts = []
    for name, placed in found.items():
        accumulator = Accumulator()
        accumulator.add(cell(), [f"{image:03d}" for image in range(100)], placed[cell()])
        parts.append(image_table(accumulator, checkpoint=name))
    values, comparison = summarize(of_table(concatenate(parts)), analyses=ANALYSES, run_info=ABOUT)
    assert comparison is not None
    values = values[values["expert"].isna()]
    shared = [name for name in comparison.columns if name != "severity"]
    pd.testing.assert_frame_equal(table[shared], comparison[shared], check_exact=True)
    sides = values.pivot(index=["metric", "null"], columns="checkpoint", values="value")
    for _, row in table.iterrows():
        here = sides.loc[(row["metric"], row["null"])]
        assert (row["reference_value"], row["checkpoint_value"]) == (here["a"], here["b"])
    assert set(table.columns) == set(COLUMNS) | set(COMPARISON_COLUMNS)


def test_a_planted_difference_of_known_size_is_found() -> None:
    """Kept 80 instead of 60 in a hundred: a difference of 0.2 in the match, 0.2 / 0.75 in κ of four experts."""
    layers = ("blocks.1", "blocks.3", "blocks.5")
    a = {cell(layer): routed(number, num_images=400) for number, layer in enumerate(layers)}
    b = {
        cell(layer): routed(10 + n, num_images=400, keep=0.8 if n else 0.6) for n, layer in enumerate(layers)
    }
    table = compare({"a": a, "b": b}, margin=0.1)
    for metric, null, size in (("top1_match", "", 0.2), ("top1_match_kappa", "pooled", 0.2 / 0.75)):
        rows = table[(table["metric"] == metric) & (table["null"] == null)]
        assert rows["verdict"].tolist() == ["same", "higher", "higher"]
        assert rows["judgement"].tolist() == ["", "better", "better"]
        truth = np.array([0, size, size])
        assert ((rows["sim_low"] < truth) & (truth < rows["sim_high"])).all()
        assert (rows["p_holm"] >= rows["p"]).all() and (rows["p_holm"].iloc[1:] < 1e-6).all()
        assert set(rows["family_cells"]) == {3}
    assert "better in 2 of 3 comparisons (+0.1" in sentence(table, metric="top1_match")
    assert "same in 1 of 3 comparisons (all inside ±0.1)" in sentence(table, metric="top1_match")


def test_the_same_sums_are_identical_and_equal_values_of_others_are_not() -> None:
    output = Cell("", "", 0, "noise", 0.1, 0, "")
    one, other = answered(0, 0.7), answered(0, 0.7)
    other = {name: values[::-1].copy() for name, values in other.items()}
    table = compare({"a": {cell(): routed(1), output: one}, "b": {cell(): routed(1), output: other}})
    of_layer, of_output = table[table["layer"] != ""], table[table["layer"] == ""]
    assert set(of_layer["verdict"]) == {"identical"}
    assert (of_layer[["value", "se"]] == 0).all(axis=None) and (of_layer["p"] == 1).all()
    # As many images could have missed some in which shares differ, and in which nothing else is known to.
    assert (of_layer["sim_low"] == -of_layer["sim_high"]).all()
    no_share = of_layer["metric"].str.endswith(("_chance", "load_entropy", "dead_experts"))
    no_share &= of_layer["null"] != "image"
    assert ((of_layer["sim_high"] > 0) == ~no_share).all()
    assert sentence(table, metric="top1_match") == "b against a: identical."
    figure = draw(of_layer, colors=colors("ab"))
    figure.draw_without_rendering()
    panel = figure.axes[0]
    (word,) = panel.texts
    box, edge = word.get_window_extent(), panel.get_window_extent()
    bar = panel.transData.transform(
        (of_layer[of_layer["metric"] == "top1_match_kappa"]["sim_high"].max(), 0)
    )[0]
    assert word.get_text() == "identical" and bar < box.x0 < box.x1 <= edge.x1, "beside its bar, in its panel"
    # The same accuracy on other images: the difference is 0, and nothing more is known than its interval.
    assert of_output["value"].abs().max() < 1e-12 and set(of_output["verdict"]) == {NO_DIFFERENCE}
    row = only(table, metric="accuracy")
    assert row["detectable"] > row["sim_high"] > 0
    bound = f"excludes a loss above {-row['sim_low']:.3f}; 100 images detect {row['detectable']:.3f}"
    assert f"no significant difference ({bound}; about " in sentence(table, metric="accuracy")


def test_a_collapsed_router_is_called_collapsed_and_not_perfect() -> None:
    placed = {cell(): routed(1), cell("blocks.3"): routed(2)}
    dead = {cell(): routed(1, experts=1), cell("blocks.3"): routed(3, keep=0.8)}
    for found, who, name in (
        ({"a": placed, "b": dead}, "checkpoint", "b"),
        ({"a": dead, "b": placed}, "reference", "a"),
    ):
        table = compare(found)
        rows = table[table["layer"] == "blocks.1"]
        number = only(rows, metric="dead_experts")
        assert (number["verdict"], number["judgement"]) == (
            ("higher", "worse") if who == "checkpoint" else ("lower", "better")
        ), "what says so"
        assert abs(number["value"]) == abs(number["sim_low"]) == 3
        rows = rows[rows["metric"] != "dead_experts"]
        assert set(rows["verdict"]) == {"collapsed"} and set(rows["collapsed"]) == {who}
        assert set(rows["judgement"]) == {""}
        assert rows[["sim_low", "sim_high", "p", "p_holm"]].isna().all(axis=None)
        assert only(rows, metric="top1_match")[f"{who}_value"] == 1, "what must not be praised"
        alive = table[table["layer"] == "blocks.3"]
        assert set(alive["collapsed"]) == {""} and "collapsed" not in set(alive["verdict"])
        # The collapsed cell is no part of the family.
        assert set(alive["family_cells"][alive["metric"] != "dead_experts"]) == {1}
        for metric in ("top1_match", "load_entropy"):
            assert f"collapsed in 1 of 2 comparisons ({name}: everything goes to one choice)" in sentence(
                table, metric=metric
            )
        texts = [text.get_text() for axes in draw(table, colors=colors("abc")).axes for text in axes.texts]
        word = "collapsed" if who == "checkpoint" else "reference collapsed"
        assert texts.count(word) == 3, "κ, match, load entropy"
    both = compare({"a": dead, "b": dead})
    number = both["metric"] == "dead_experts"
    assert set(both[(both["layer"] == "blocks.1") & ~number]["collapsed"]) == {"both"}
    assert "(b and a: everything" in sentence(both, metric="top1_match")


def test_a_router_that_all_but_collapsed_is_not_praised() -> None:
    nearly = routed(1, experts=1)
    for side in ("reference_selected", "view_selected"):
        nearly[side][0, :3] = 1  # without this image, absent from a third of the resamples, chance is 1
    table = compare({"a": {cell(): routed(1)}, "b": {cell(): nearly}})
    assert only(table, metric="top1_match_kappa", null="pooled")["verdict"] == "unstable"
    match = only(table, metric="top1_match")
    assert match["verdict"] == "higher" and match["judgement"] == ""


def test_what_decides_is_judged_as_one_family_over_tokens_and_pairs() -> None:
    """Any cell may fail the gate, so its error is that of them all: 5 kinds of tokens, 2 pairs, 1 layer."""
    kinds = [dataclasses.replace(cell(), tokens=name) for name in ("patch", "prefix", "fore", "edge", "back")]
    found = {
        name: {place: routed(10 * seed + number) for number, place in enumerate(kinds)}
        for seed, name in enumerate("abc")
    }
    alone, whole = compare(found), compare(found, together="top1_match")
    of_metric = alone["metric"] == "top1_match"
    assert set(alone[of_metric]["family_cells"]) == {1} and set(whole[of_metric]["family_cells"]) == {10}
    widths = [(table["sim_high"] - table["sim_low"])[of_metric] for table in (alone, whole)]
    assert (widths[1] > 1.2 * widths[0]).all() and (whole["p_holm"] >= alone["p_holm"])[of_metric].all()
    pd.testing.assert_frame_equal(alone[~of_metric], whole[~of_metric])


def test_inputs_left_out_are_no_collapse_and_no_steadiness() -> None:
    marked = {"not_finite": (np.arange(100) == 3).astype(np.int64)}
    for found in (
        {"a": {cell(): routed(1)}, "b": {cell(): routed(1) | marked}},
        {"a": {cell(): routed(1) | marked}, "b": {cell(): routed(1)}},
    ):
        table = compare(found)
        assert set(table["verdict"]) == {"not finite"} and set(table["flag"]) == {"not_finite"}
        assert set(table["collapsed"]) == {""} and set(table["judgement"]) == {""}
        assert sentence(table, metric="top1_match") == "b against a: not finite."


def test_raw_matches_of_other_numbers_of_experts_are_not_judged_and_kappa_is() -> None:
    few, many = routed(1, keep=0.9), routed(2, keep=0.3)
    many["load"] = np.pad(many["load"], ((0, 0), (0, 4)))
    for found, expected in (
        ({"a": {cell(): few}, "b": {cell(): many}}, {"": "", "κ": "worse"}),
        ({"a": {cell(): few}, "b": {cell(): many | {"load": few["load"]}}}, {"": "worse", "κ": "worse"}),
    ):
        table = compare(found)
        raw, kappa = only(table, metric="top1_match"), only(table, metric="top1_match_kappa", null="pooled")
        assert (raw["verdict"], raw["judgement"]) == ("lower", expected[""])
        assert (kappa["verdict"], kappa["judgement"]) == ("lower", expected["κ"])


@pytest.mark.parametrize(
    ("metric", "low", "high", "allowed", "fails"),
    [
        ("accuracy", -0.019, 0.3, 0.02, False), ("accuracy", -0.021, 0.3, 0.02, True),
        ("loss", -0.3, 0.019, 0.02, False), ("loss", -0.3, 0.021, 0.02, True),
        ("accuracy", np.nan, np.nan, 0.02, True), ("accuracy", -0.015, -0.001, 0.02, False),
    ],
)  # fmt: skip
def test_what_is_not_shown_to_be_no_worse_fails(
    metric: str, low: float, high: float, allowed: float, fails: bool
) -> None:
    row = {
        "metric": metric,
        "tokens": "",
        "sim_low": low,
        "sim_high": high,
        "verdict": NO_DIFFERENCE,
    }
    row |= {"severity": np.nan}
    table = pd.DataFrame([row | {"judgement": "", "collapsed": ""}])
    assert len(Gate(metric, allowed).failures(table)) == fails
    assert len(Gate(metric, None).failures(table)) == 0
    # The same on few images may differ on others, but for a clean input that is compared with itself.
    same = table.assign(verdict="identical", sim_low=-0.18, sim_high=0.18)
    assert len(Gate(metric, allowed).failures(same)) == 1
    match = same.assign(metric="top1_match", severity=0.0)
    assert len(Gate("top1_match", allowed).failures(match)) == 0
    assert len(Gate("top1_match", allowed).failures(match.assign(severity=0.1))) == 1


def test_few_images_and_no_trials() -> None:
    table = compare({"a": {cell(): routed(1, num_images=19)}, "b": {cell(): routed(2, num_images=19)}})
    assert set(table["verdict"]) == {"few images"} and table["sim_low"].isna().all()
    assert draw(table, colors=colors("abc")).axes[0].texts[0].get_text() == "few images"
    nowhere = routed(2) | {
        "trials": np.zeros(100, dtype=np.int64),
        "top1_match": np.zeros(100, dtype=np.int64),
    }
    nowhere |= {
        side: np.full((100, 6, 1), -1, dtype=np.int16) for side in ("reference_selected", "view_selected")
    }
    table = compare({"a": {cell(): routed(1)}, "b": {cell(): nowhere}})
    assert only(table, metric="top1_match")["verdict"] == "no trials"


def test_less_loss_is_better_and_less_accuracy_worse() -> None:
    output = Cell("", "", 0, "noise", 0.1, 0, "")
    table = compare({"a": {output: answered(0, 0.9)}, "b": {output: answered(1, 0.5)}})
    assert tuple(only(table, metric="accuracy")[["verdict", "judgement"]]) == ("lower", "worse")
    assert tuple(only(table, metric="loss")[["verdict", "judgement"]]) == ("higher", "worse")
    assert not any(find(name).direction for name in ("gate_highest", "load_entropy", "top1_match_chance"))
    assert all(find(name).direction == 1 for name in ("top3_set_match", "top1_match_kappa", "top5_accuracy"))


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.001, 0.3, "higher"), (-0.3, -0.001, "lower"), (-0.019, 0.019, "same"),
        (-0.021, 0.019, NO_DIFFERENCE), (-0.019, 0.02, NO_DIFFERENCE), (np.nan, np.nan, NO_INTERVAL),
    ],
)  # fmt: skip
def test_the_word_follows_the_simultaneous_interval(low: float, high: float, word: str) -> None:
    """Whatever the cell's own interval and p say."""
    replicates = Replicates(0.1, np.full(100, 0.1), images=50, trials=50)
    judged = Judged(sim_low=low, sim_high=high, family_cells=1, p=0.0, p_holm=0.0, detectable=0.1)
    assert words.verdict(Evidence.of(Difference(replicates, 0.01)), judged, margin=0.02) == word


@pytest.mark.parametrize("word", UNJUDGED)
def test_a_difference_without_an_interval_is_called_by_its_flag(word: str) -> None:
    """As where fewer than half of the tokens of one side change, so that there is no median."""
    replicates = Replicates(
        np.nan, np.full(100, np.nan), images=50, trials=50, undefined=word.replace(" ", "_")
    )
    judged = Judged(np.nan, np.nan, family_cells=1, p=np.nan, p_holm=np.nan, detectable=np.nan)
    assert words.verdict(Evidence.of(Difference(replicates, np.nan)), judged, margin=np.nan) == word


def row_of(value: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    """A judged difference of b from a, of 50 images; ``more`` replaces what is said of it."""
    ends = {"value": value, "sim_low": low, "sim_high": high, "tokens": "patch"}
    return (
        {"checkpoint": "b", "reference": "a", "metric": "accuracy", "collapsed": "", "images": 50}
        | ends
        | more
    )


def test_a_difference_smaller_than_the_margin_is_named_as_such() -> None:
    said = words.sentence([row_of(0.01, 0.005, 0.015, judgement="better")], margin=0.02)
    assert said == "b against a: better (+0.010, all by less than 0.02)."


def test_differences_of_whole_numbers_have_no_decimals() -> None:
    row = row_of(1.0, 1.0, 1.0, metric="dead_experts", judgement="worse")
    said = words.sentence([row], margin=np.nan)
    assert said == "b against a: worse (+1)."
    assert find("dead_experts").metric.unit == "whole"


def test_different_images_are_not_compared() -> None:
    found = {"a": {cell(): routed(1)}, "b": {cell(): routed(2)}}
    with pytest.raises(UserError, match=r"different images \(100 and 100, 99 in common\)"):
        compare(found, names=[f"{image:03d}" for image in range(1, 101)])


GROUPS = {"a0": "A", "a1": "A", "b0": "B", "b1": "B", "b2": "B", "best": "A"}
SEEDS = {"a0": 0, "a1": 1, "b0": 0, "b1": 1, "b2": 2, "best": 0}


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ("a0 b0 x", "b0-a0 x-a0"),
        ("a0 a1", "a1-a0"),
        ("a0 a1 b0 b1", "b0-a0 b1-a1"),
        ("a1 b1 b0 a0", "b1-a1 b0-a0"),
        ("a0 a1 b0 b1 b2 x", "b0-a0 b1-a1 x-a0"),
        ("a0 a1 b0", "a1-a0 b0-a0"),
        ("a0 best b0 b1", "best-a0 b0-a0 b1-a0"),
        ("x a0 a1 b0 b1", "a0-x a1-x b0-x b1-x"),
    ],
)
def test_seeds_are_paired_with_their_like(checkpoints: str, expected: str) -> None:
    found = pairs(checkpoints.split(), groups=GROUPS, seeds=SEEDS)
    assert " ".join(f"{one}-{other}" for one, other in found) == expected


def test_the_reference_stands_first_and_what_the_numbers_rest_on_is_a_line_each() -> None:
    table = compare({"a": {cell(): routed(1)}, "b": {cell(): routed(2)}})
    (shown, *_) = comparison_tables(table)
    titles = [str(column.header) for column in shown.columns]
    assert titles.index("a") < titles.index("b")
    cells = {title: next(iter(column.cells)) for title, column in zip(titles, shown.columns, strict=True)}
    row = only(table, metric="top1_match_kappa", null="pooled")
    assert (cells["a"], cells["b"]) == (f"{row['reference_value']:.3f}", f"{row['checkpoint_value']:.3f}")
    probe = {"data": "digits", "split": "test", "view": {"name": "noise"}, "seed": 0}
    about = {"request": {"probe": probe, "margin": 0.02}, "checkpoints": {"a": {}, "b": {}}}
    said = comparison_footing(Comparison(table, table[:0], table[:0], Sidecar(about))).splitlines()
    assert len(said) > 4 and max(map(len, said)) < 200
    of_one = Comparison(table.assign(images=1, unit="patient"), table[:0], table[:0], Sidecar(about))
    assert comparison_footing(of_one).startswith("1 patient of digits test; ")


def test_the_forest_shows_every_difference_with_its_simultaneous_interval() -> None:
    layers = ("blocks.1", "blocks.3")
    found: dict[str, dict[Cell, Columns]] = {"a": {}, "b": {}, "c": {}}
    for number, placed in enumerate(found.values()):
        for layer in layers:
            for severity in (0.1, 0.2):
                seed = 10 * number + len(placed)
                placed[cell(layer, severity)] = routed(seed, keep=0.4 + 0.2 * number)
    table = compare(found)
    figure = draw(table, colors=colors("abc"))
    panel = figure.axes[0]
    low, high = panel.get_xlim()
    assert low < 0 < high and low < -0.02 and high > 0.02
    drawn = set()
    for container in panel.containers:
        assert isinstance(container, ErrorbarContainer)
        points, _, (bars,) = container.lines
        assert points is not None and isinstance(bars, LineCollection)
        values = np.asarray(points.get_xdata(), dtype=float)
        for value, ends in zip(values, bars.get_segments(), strict=True):
            drawn.add(tuple(round(float(number), 9) for number in (value, ends[0][0], ends[1][0])))
    rows = table[(table["metric"] == "top1_match_kappa") & (table["null"] == "pooled")]
    assert drawn == {
        tuple(round(row[name], 9) for name in ("value", "sim_low", "sim_high")) for _, row in rows.iterrows()
    }
    assert len(drawn) == 8
    assert all(low <= number <= high for numbers in drawn for number in numbers)
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == ["blocks.1 at 0.1", "blocks.1 at 0.2", "blocks.3 at 0.1", "blocks.3 at 0.2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["b", "c"]


def test_a_gate_says_in_short_lines_what_failed() -> None:
    placed = [cell("blocks.3", severity) for severity in np.arange(1, 13) / 20]
    kept = {"a": 0.9, "b": 0.3}
    table = compare({name: {one: routed(1, keep=keep) for one in placed} for name, keep in kept.items()})
    failed = table[(table["metric"] == "top1_match") & (table["judgement"] == "worse")]
    assert len(failed) == 12
    first, *rows, last = gate_outcome(
        Comparison(table, table[:0], failed, Sidecar()), "top1_match"
    ).splitlines()
    assert first == "--fail-if-worse top1_match: failed in 12 of 12 comparisons."
    assert rows == [
        f"  b worse by {-row['value']:.3f} (blocks.3, patches, severity {row['severity']:g})"
        for _, row in failed[:10].iterrows()
    ]
    assert last == "  … and 2 more; --json lists all."
    short = gate_outcome(Comparison(table, table[:0], failed[:1], Sidecar()), "top1_match").splitlines()
    assert short[0].endswith("failed in 1 of 12 comparisons.") and short[1:] == rows[:1]


def test_the_footing_speaks_of_what_was_read() -> None:
    table = compare({name: {cell(): routed(seed)} for seed, name in enumerate("ab")})
    probe = {"data": "text:lines.txt", "split": "test", "view": {"name": "typos"}, "seed": 0}
    about = {"request": {"probe": probe, "margin": 0.02}, "checkpoints": {"a": {}, "b": {}}}
    for tokens, units, others in (("patch", "images", "texts"), ("token", "texts", "images")):
        said = comparison_footing(
            Comparison(table.assign(tokens=tokens), table[:0], table[:0], Sidecar(about))
        )
        assert f"100 {units} of text:lines.txt test" in said
        assert f"resamples of {units}" in said and others not in said


def test_the_footing_says_by_what_intervals_hold_together() -> None:
    """Resamples are of few images; of many there are signs, and of many looks neither."""
    table = compare({name: {cell(): routed(seed)} for seed, name in enumerate("ab")})
    probe = {"data": "digits", "split": "test", "view": {"name": "noise"}, "seed": 0}

    def footing(rows: pd.DataFrame, **request: Any) -> str:
        about = {"request": {"probe": probe, "margin": 0.02} | request, "checkpoints": {"a": {}, "b": {}}}
        return comparison_footing(Comparison(rows, rows[:0], rows[:0], Sidecar(about | {"look": 1})))

    assert "max-|t| over 2,000 bootstrap resamples of images" in footing(table)
    linear = table.assign(interval="linearized")
    assert "max-|t| over 2,000 random signs of the influences of images" in footing(linear, looks=10)
    assert "(t and Šidák's rule over images, paired)" in footing(linear, looks=11)


def test_a_mismatch_that_is_rounding_has_not_collapsed() -> None:
    """Of one checkpoint there is no share of the mismatch that is routing, of the other there is."""

    def columns(mismatch: float) -> Columns:
        random = np.random.default_rng(0)
        moved = torch.from_numpy(mismatch * random.uniform(0.5, 1.5, (40, 8)))
        scores = Scores(torch.zeros(40, 8), moved, moved / 2)
        return {name: values.numpy() for name, values in MismatchAnalysis().sums(scores).items()}

    replayed = Cell("", "", 0, "replayed", float("nan"), 0, "")
    values = {"a": {replayed: columns(0.1)}, "b": {replayed: columns(1e-9)}}
    table = compare(values, analyses=(MismatchAnalysis(),))
    share = only(table, metric="mismatch_routing_share")
    assert (share["verdict"], share["flag"], share["collapsed"]) == ("no mismatch", "no_mismatch", "")
    assert "collapsed" not in sentence(table, metric="mismatch_routing_share")
    assert only(table, metric="mismatch")["verdict"] == "lower"


@pytest.mark.parametrize("limit", [2000, 60])
def test_a_mean_over_views_is_judged_above_and_below_the_limit_of_resamples(limit: int) -> None:
    """The mean of two severities at which the same images are judged; their error by hand, on either side."""
    num_images, parts = 100, []
    matches: dict[tuple[str, float], NDArray[np.float64]] = {}
    for name, keep in (("a", 0.5), ("b", 0.8)):
        accumulator = Accumulator()
        for severity in (0.1, 0.2):
            columns = routed(round(100 * keep + 10 * severity), num_images=num_images, keep=keep)
            ids = [f"{image:03d}" for image in range(num_images)]
            accumulator.add(cell(severity=severity), ids, columns)
            matches[name, severity] = columns["top1_match"] / 6
        parts.append(image_table(accumulator, checkpoint=name))
    evaluate = Evaluator(ANALYSES, aligned=True, seed=5, influences=True, experts=False, largest=limit)
    valued = [[evaluate(stored) for stored in site] for site in of_table(concatenate(parts)).sites()]
    mean = Mean("noise", np.nan, (("noise", 0.1), ("noise", 0.2)))
    [[reference, checkpoint]] = mean_values(valued, means=[mean], baseline=None)
    judging = differences.Judging()
    judging.add(differences.compare_values(checkpoint, reference, ABOUT, combined=True))
    row = only(pd.DataFrame(judging.rows()), metric="top1_match")
    by_image = np.mean([matches["b", severity] - matches["a", severity] for severity in (0.1, 0.2)], axis=0)
    assert row["value"] == pytest.approx(by_image.mean())
    assert row["se"] == pytest.approx(by_image.std(ddof=1) / np.sqrt(num_images), rel=0.06)
    assert row["sim_low"] < row["value"] < row["sim_high"] and row["verdict"] == "higher"
