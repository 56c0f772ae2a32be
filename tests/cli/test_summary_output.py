"""What the commands print without --full: one verdict, and the headline of every layer."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from rich.table import Table

from moeprobe.cli.front import show, tables
from moeprobe.judging.words import NO_DIFFERENCE
from moeprobe.results.folder import Result
from moeprobe.results.stored import SumsStore
from moeprobe.results.tables import frame
from tests.commands import run
from tests.studies.report.making import NAN, Value, frame_of_differences, minus, row, sidecar


def result(kind: str, values: Mapping[tuple[str, str, str, str, Any], Value], **request: Any) -> Result:
    """Two checkpoints; the second is higher by 0.1 where a value is neither 0 nor 1."""

    def of(name: str, value: Value) -> Value:
        higher = 0.1 if name == "b" and value[0] not in (0, 1) else 0.0
        return value[0] + higher, value[1] + higher, value[2] + higher

    rows, differences = [], []
    for (layer, tokens, metric, null, severity), value in values.items():
        more: dict[str, Any] = {"view": "noise", "severity": severity}
        key = (layer, tokens, metric, null)
        rows += [row(name, key, of(name, value), **more) for name in "ab"]
        difference = minus(of("b", value), value) if value[0] not in (0, 1) else (0.0, 0.0, 0.0)
        differences.append(row("b", key, difference, **more) | {"reference": "a"})
    about = sidecar(kind, "ab", request={"replayed_gates": None, "severities": [], **request})
    return Result(frame(rows), frame_of_differences(differences), SumsStore(()), about)


def cells(parts: list[Table | str]) -> str:
    """All that stands in the tables."""
    tables = [part for part in parts if isinstance(part, Table)]
    return "\n".join(
        " ".join(
            [
                str(table.title),
                *(str(cell) for column in table.columns for cell in [column.header, *column.cells]),
            ]
        )
        for table in tables
    )


def words(parts: list[Table | str]) -> list[str]:
    return [part for part in parts if isinstance(part, str)]


def match(layers: int) -> Result:
    return result(
        "match-ratio",
        {
            (f"blocks.{2 * layer + 1}", tokens, metric, null, None): (0.4, 0.38, 0.42)
            for layer in range(layers)
            for tokens in ("patch", "prefix")
            for metric, null in (
                ("top1_match", ""), ("top1_match_chance", "pooled"), ("top1_match_kappa", "pooled"),
                ("top1_match_kappa", "image"), ("top2_match", ""), ("load_entropy", ""),
            )
        }
        | {("blocks.1", "patch", "unweighted", "", None): (0.0, 0.0, 0.0)},
    )  # fmt: skip


@pytest.mark.parametrize("layers", [2, 16, 48])
def test_a_verdict_and_a_line_per_layer(layers: int) -> None:
    short = show.side_by_side(match(layers), title="t", full=False)
    (verdict, more) = words(short)
    assert "In blocks.1, the first MoE layer" in verdict and "is higher (better) in" in verdict
    assert "--full" in more
    assert f"κ over all {layers} MoE layers: difference +0.100 (blocks.1) to +0.100" in verdict
    assert verdict.endswith(f"better in {layers} of {layers} layers.")
    (table,) = [part for part in short if isinstance(part, Table)]
    # Of each layer a line per checkpoint and one of their difference.
    assert table.row_count == 3 * layers and "pairs without weights" not in cells(short)
    full = show.side_by_side(match(layers), title="t", full=True)
    assert words(full) == [verdict] and cells(full).count("top-2 match") == 2 * layers
    assert "pairs without weights" in cells(full)


def test_what_is_0_by_construction_is_a_sentence() -> None:
    numbers = {
        ("blocks.3", "patch", f"{kind}_contagion{end}", "", None): value
        for kind, value in (("batch", (0.0,) * 3), ("token", (0.0,) * 3), ("attention", (0.4, 0.38, 0.42)))
        for end in ("", "_distance")
    }
    short = show.side_by_side(result("contagion", numbers), title="t", full=False)
    assert "when pixels of other patches are exchanged" in words(short)[0]
    assert (
        "0 exactly when batch-mates are exchanged or other tokens at the router are exchanged"
        in words(short)[1]
    )
    assert "attention contagion" in cells(short)
    assert "batch contagion" not in cells(short) and "token contagion" not in cells(short)


@pytest.mark.parametrize(
    ("images", "raw", "sentence"),
    [
        (
            1,
            0.5,
            "In blocks.1, the first MoE layer (1 image, 12 trials), there is no κ: chance compares different images, "
            "and there is one alone. The raw value is: a 0.500 (few images); b 0.500 (few images).",
        ),
        (
            2,
            0.5,
            "In blocks.1, the first MoE layer (2 images, 12 trials), there is no κ: there is nothing to compute chance "
            "from (no trials). The raw value is: a 0.500 (few images); b 0.500 (few images).",
        ),
        (
            0,
            NAN,
            "In blocks.1, the first MoE layer, there is nothing to compute κ from (no trials).",
        ),
    ],
)
def test_without_trials_the_verdict_says_why(images: int, raw: float, sentence: str) -> None:
    rows = [
        row(name, ("blocks.1", "patch", metric, null), (value, NAN, NAN), view="random_crop", **rests_on)
        for name in "ab"
        for metric, null, value, rests_on in (
            ("top1_match", "", raw, {"images": images, "trials": 12 if images else 0, "flag": "few_images"}),
            ("top1_match_chance", "pooled", NAN, {"images": 0, "trials": 0, "flag": "no_trials"}),
            ("top1_match_kappa", "pooled", NAN, {"images": 0, "trials": 0, "flag": "no_trials"}),
        )
    ]
    found = Result(frame(rows), None, SumsStore(()), sidecar("match-ratio", "ab"))
    assert words(show.side_by_side(found, title="t", full=False))[0] == sentence


def sweep(layers: int) -> Result:
    severities = (0.0, 0.1, 0.4)
    routing = {
        (f"blocks.{layer}", "patch", metric, null, at): (1.0, 1.0, 1.0)
        if at == 0
        else (0.6 - at, 0.5 - at, 0.7 - at)
        for layer in range(layers)
        for metric, null in (
            ("top1_match", ""),
            ("top1_match_kappa", "pooled"),
            ("top1_match_kappa", "image"),
        )
        for at in severities
    }
    output = {("", "", "accuracy", "", at): (0.8 - at, 0.7 - at, 0.85 - at) for at in severities}
    return result("sweep", routing | output, severities=list(severities))


def test_a_sweep_leads_with_kappa_of_every_layer_and_leaves_out_what_is_1_exactly() -> None:
    short = show.along_severity(sweep(2), title="noise", full=False)
    assert "at severity 0.4, the strongest of the run" in words(short)[0]
    shown = cells(short)
    assert "blocks.0" in shown and "blocks.1" in shown and "1.000" not in shown
    assert "0.800" in shown  # the accuracy on clean images
    full = show.along_severity(sweep(2), title="noise", full=True)
    assert words(full) == words(short)[:-1] and cells(full).count("1.000") > 4


def test_a_sweep_over_many_layers_has_a_line_per_layer() -> None:
    short = show.along_severity(sweep(16), title="noise", full=False)
    tables = [part for part in short if isinstance(part, Table)]
    assert tables[0].row_count == 16 and "at severity 0.4, the strongest" in str(tables[0].title)
    assert len(tables) == 2


def test_without_headlines_everything_is_shown() -> None:
    odd = result("match-ratio", {("blocks.1", "patch", "churn", "", None): (0.2, 0.1, 0.3)})
    assert "churn" in cells(show.side_by_side(odd, title="t", full=False))


@pytest.mark.parametrize(
    "command",
    ["match-ratio", "s-matrix", "confidence", "sweep", "noise-sweep", "contagion", "discontinuity", "compare",
     "trace analyze"],
)  # fmt: skip
def test_help_names_full(command: str) -> None:
    assert "--full" in run(*command.split(), "--help").output


def test_single_values_without_a_comparison() -> None:
    found = match(2)
    alone = Result(found.table[found.table["checkpoint"] == "a"], None, found.sums, found.sidecar)
    assert "κ is: a 0.400 [0.380, 0.420]" in words(show.side_by_side(alone, title="t", full=False))[0]
    assert isinstance(alone.table, pd.DataFrame)


def with_sets(kind: str, *, severity: float | None = None) -> Result:
    """First choices that gain, and sets of two that do not."""
    found = result(
        kind,
        {
            ("blocks.1", "patch", metric, null, severity): (0.4, 0.38, 0.42)
            for metric, null in (
                ("top1_match", ""), ("top1_match_kappa", "pooled"), ("top2_match", ""), ("top2_set_match", ""),
                ("top2_set_match_kappa", "pooled"), ("top2_set_match_kappa", "image"),
            )
        },
    )  # fmt: skip
    differences = found.comparison
    assert differences is not None
    of_sets = differences["metric"].str.startswith("top2_set")
    changes: dict[str, Any] = {
        "value": 0.0,
        "ci_low": -0.02,
        "ci_high": 0.02,
        "sim_low": -0.02,
        "sim_high": 0.02,
    }
    changes |= {"verdict": NO_DIFFERENCE, "judgement": ""}
    for column, value in changes.items():
        differences.loc[of_sets, column] = value
    return found


@pytest.mark.parametrize("severity", [None, 0.2])
def test_a_gain_of_first_choices_alone_is_not_printed_alone(severity: float | None) -> None:
    kind = "match-ratio" if severity is None else "sweep"
    print_tables = show.side_by_side if severity is None else show.along_severity
    shown = print_tables(with_sets(kind, severity=severity), title="t", full=False)
    sets, beside, _ = words(shown)
    assert "show no significant difference in κ" in sets
    assert "κ within the image +0.000 [-0.020, +0.020], no significant difference" in beside
    assert "κ₁ (first choice) +0.100 [+0.080, +0.120], better" in beside
    assert "top-2 match, any order" in cells(shown) and "within image" in cells(shown)


@pytest.mark.parametrize(("severity", "name"), [(None, "top-1 match (κ₁)"), (0.2, "κ₁")])
def test_tables_call_kappa_of_first_choices_so_where_one_model_has_several(
    severity: float | None, name: str
) -> None:
    metrics = (("top1_match", ""), ("top1_match_kappa", "pooled"))
    values = {("blocks.1", "patch", *metric, severity): (0.4, 0.38, 0.42) for metric in metrics}
    found = result("match-ratio" if severity is None else "sweep", values)
    found.table["top_k"] = found.table["checkpoint"].map({"a": 1, "b": 2})
    print_tables = show.side_by_side if severity is None else show.along_severity
    # Without --full, columns along a severity are layers.
    shown = print_tables(found, title="t", full=severity is not None)
    assert "κ₁ (first choice) is higher" in words(shown)[0]
    (table,) = [part for part in shown if isinstance(part, Table)]
    texts = {str(text) for column in table.columns for text in (column.header, *column.cells)}
    assert name in texts


def test_match_chance_and_kappa_stand_side_by_side_in_each_layer() -> None:
    (table,) = [
        part for part in show.side_by_side(match(2), title="t", full=False) if isinstance(part, Table)
    ]
    columns = {str(column.header): [*column.cells] for column in table.columns}
    assert [*columns] == ["layer", "metric", "checkpoint", "match", "chance", "κ", "κ, within image"]
    assert columns["layer"] == ["blocks.1", "", "", "blocks.3", "", ""]
    assert columns["checkpoint"] == ["a", "b", "difference"] * 2
    assert columns["match"][:3] == ["0.400 [0.380, 0.420]", "0.500 [0.480, 0.520]", "+0.100 [+0.080, +0.120]"]
    # Chance is read beside its match; how sure it is, and how far two chances differ, is in the table's file.
    assert columns["chance"][:3] == ["0.400", "0.500", ""]


def layered(values: Mapping[str, float], metric: str = "top1_match_kappa") -> str:
    """What is said of one checkpoint whose layers have these values."""
    numbers = {
        (layer, "patch", metric, "pooled" if "kappa" in metric else "", None): (
            value,
            value - 0.1,
            value + 0.1,
        )
        for layer, value in values.items()
    }
    found = result("match-ratio" if "kappa" in metric else "confidence", numbers)
    alone = Result(found.table[found.table["checkpoint"] == "a"], None, found.sums, found.sidecar)
    return words(show.side_by_side(alone, title="t", full=False))[0]


def test_a_headline_names_the_worst_layer_and_the_first() -> None:
    said = layered({"blocks.1": 0.6, "blocks.3": 0.2, "blocks.5": 0.7})
    assert said.startswith("In blocks.1, the first MoE layer")
    assert (
        "κ over all 3 MoE layers: a 0.200 (blocks.3, the worst; separated from all others) to 0.700 (blocks.5)."
        in said
    )
    assert "over all" not in layered({"blocks.1": 0.6})


def test_a_headline_counts_the_layers_in_which_nothing_differs() -> None:
    found = match(3)
    differences = found.comparison
    assert differences is not None
    for layer, value in (("blocks.3", 0.0), ("blocks.5", -0.1)):
        here = differences["layer"] == layer
        word = "lower" if value < 0 else NO_DIFFERENCE
        changes: dict[str, Any] = {
            "value": value,
            "sim_low": value - 0.02,
            "sim_high": value + 0.02,
            "verdict": word,
        }
        changes |= {"judgement": "worse" if value < 0 else ""}
        for column, at in changes.items():
            differences.loc[here, column] = at
    (verdict, _) = words(show.side_by_side(found, title="t", full=False))
    assert (
        "difference -0.100 (blocks.5) to +0.100 (blocks.1), mixed: better in 1, worse in 1 of 3 layers."
        in verdict
    )


def test_a_long_name_is_broken_after_a_hyphen() -> None:
    assert tables.break_words("digits-prc-k2-seed0", 12) == "digits-prc-\nk2-seed0"
    assert tables.break_words("match of digits-prc-k2-seed0", 12) == "match of digits-prc-\nk2-seed0"
    assert tables.break_words("short", 12) == "short" and tables.break_words("x" * 20, 12) == "x" * 20
