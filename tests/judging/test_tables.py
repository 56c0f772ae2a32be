"""A comparison reads the same in the terminal, in a report and in a notebook."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from moeprobe.cli.front import tables
from moeprobe.judging import tables as judged_tables
from moeprobe.judging.differences import sentences as families
from moeprobe.judging.words import NO_DIFFERENCE
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import frame
from moeprobe.runtime.files import write_csv
from moeprobe.studies.compare import Comparison
from moeprobe.studies.report.reading import read_runs
from moeprobe.studies.report.selection import short_tables
from moeprobe.studies.report.summary import findings
from tests.results.layouts.rendering import on_page, on_screen, same
from tests.studies.report.making import NAN, row, write_rows

Key = tuple[str, str, str, str]
ZERO: dict[str, Any] = {
    "checkpoint_value": 0.0, "reference_value": 0.0, "verdict": "identical", "sim_low": -0.1, "sim_high": 0.1,
}  # fmt: skip


def judged(
    key: Key, value: float = 0.1, *, checkpoint: str = "b", reference: str = "a", **more: Any
) -> dict[str, Any]:
    """A difference that is better; ``more`` replaces what is said of it."""
    about: dict[str, Any] = {
        "reference": reference, "verdict": "higher", "judgement": "better", "sim_low": value - 0.08,
        "sim_high": value + 0.08, "margin": 0.02, "detectable": 0.09, "collapsed": "",
        "checkpoint_value": 0.4 + value, "reference_value": 0.4, "p_holm": 0.01,
    }  # fmt: skip
    return row(checkpoint, key, (value, value - 0.05, value + 0.05), view="noise", **(about | more))


def kappa(layer: str = "blocks.1") -> Key:
    return (layer, "patch", "top1_match_kappa", "pooled")


MATCH = [judged(kappa()), judged(kappa("blocks.3"), judgement="", verdict=NO_DIFFERENCE)]
COMPARED = {
    "metrics": [*MATCH, *(judged((layer, "patch", "top1_match", "")) for layer in ("blocks.1", "blocks.3"))],
    "severities": [
        judged(kappa(layer), severity=at, p_holm=0.0001) for layer in ("blocks.1", "blocks.3") for at in (0.125, 0.2)
    ],
    "pairs": [judged(kappa(layer), checkpoint=name) for name in "bc" for layer in ("blocks.1", "blocks.3")],
    "shots": [judged(("", "", "fewshot_accuracy", ""), severity=at) for at in (1.0, 10.0)],
    "small": [judged(kappa(), 0.002, sim_low=0.001, sim_high=0.003), judged(kappa("blocks.3"))],
    "collapsed": [judged(kappa(), NAN, verdict="collapsed", judgement="", collapsed="checkpoint", p_holm=NAN)],
}  # fmt: skip


def run_of(table: pd.DataFrame, folder: Path) -> Path:
    said = families(table).to_dict("records")
    run = write_rows(folder / "run", "compare", [], checkpoints=("a", "b", "c"), verdicts=said)
    write_csv(run / "comparison.csv", table)
    return run


@pytest.mark.parametrize("name", COMPARED)
def test_the_terminal_a_report_and_a_notebook_show_the_same(name: str, tmp_path: Path) -> None:
    table = frame(COMPARED[name], judged=True)
    (run,) = read_runs([run_of(table, tmp_path)])
    screen, page = on_screen(tables.comparison_tables(table)), on_page(short_tables(run))
    assert same(screen, page) and len(screen) > len(COMPARED[name])
    (finding,) = findings([run])
    said = judged_tables.sentences(families(table), table)
    assert finding.sentences == [*said, "Verdicts go by simultaneous intervals over 360 images."]
    about = {"request": {"probe": {"data": "digits", "split": "test"}}, "fail_if_worse": None}
    notebook = Comparison(table, families(table), table[:0], Sidecar(about))._repr_html_()
    assert all(cell.split(" [")[0].replace("<", "&lt;") in notebook for line in page for cell in line)
    assert all(sentence in notebook for sentence in said)


def test_the_verdict_comes_first_and_what_it_rests_on_last() -> None:
    first, second = judged_tables.tables(frame(COMPARED["metrics"], judged=True))
    assert first.columns == [
        "layer", "verdict", "difference [simultaneous 95 %]", "a", "b", "p (Holm)", "images", "trials",
    ]  # fmt: skip
    cells = [f"{cell.text} {cell.between}".rstrip() for cell in first.rows[0]]
    assert cells == [
        "blocks.1", "better (higher)", "+0.100 [+0.020, +0.180]", "0.400", "0.500", "0.010", "360", "5,530",
    ]  # fmt: skip
    assert (
        first.rows[1][1].text == "no significant difference (excludes a loss above 0.000; detectable: 0.090)"
    )
    assert first.caption == "κ of top-1 match (top1_match_kappa, patches)" and not first.folded
    assert second.caption == "Top-1 match (top1_match, patches)" and second.folded
    assert not any(
        one.folded
        for one in judged_tables.tables(frame(COMPARED["metrics"], judged=True), extra="top1_match")
    )


def test_a_comparison_opens_with_a_line_per_metric() -> None:
    lines = {name: judged_tables.overview(frame(rows, judged=True)) for name, rows in COMPARED.items()}
    assert lines["metrics"].caption == "Verdicts: b against a" and lines["metrics"].place == 0
    assert [*lines["metrics"].columns] == ["metric", "verdict", "difference [simultaneous 95 %]"]
    assert [*lines["pairs"].columns] == ["metric", "compared", "verdict", "difference [simultaneous 95 %]"]
    assert (lines["metrics"].keys, lines["pairs"].keys) == (1, 2)
    assert [[cell.line for cell in line] for line in lines["metrics"].rows] == [
        ["κ of top-1 match", "better (1 of 2), no significant difference (1 of 2), excludes a loss above 0.000",
         "+0.100 [+0.020, +0.180]"],
        ["Top-1 match", "better (2 of 2)", "+0.100 [+0.020, +0.180]"],
    ]  # fmt: skip
    assert [cell.line for cell in lines["small"].rows[0]][1:] == [
        "better (2 of 2)", "+0.002 to +0.100 [+0.001, +0.180]",
    ]  # fmt: skip
    # A line for each pair, where there are several; the metric is named once.
    assert [line[1].text for line in lines["pairs"].rows] == ["b − a", "c − a"]
    assert lines["pairs"].place == 1 and lines["pairs"].caption == "Verdicts"
    assert [cell.line for cell in lines["collapsed"].rows[0]][1:] == ["collapsed", "–"]
    # What lines are sorted by: a difference that does not exist is none.
    assert [lines[name].rows[0][-1].key for name in ("metrics", "collapsed")] == [0.1, None]


def test_claims_about_trainings_stand_before_pairs_without_one() -> None:
    """A metric that trainings claim has a line of its own; the pairs have that of the others."""
    pairs = [
        judged(("blocks.1", "patch", metric, null), checkpoint=f"b{seed}", reference=f"a{seed}")
        for metric, null in (("top1_match_kappa", "pooled"), ("top1_match", ""))
        for seed in range(3)
    ]
    table = frame(pairs, judged=True)
    claim = judged(kappa(), 0.05, sim_low=0.01, sim_high=0.09) | {"trainings": 3}
    claims = pd.DataFrame([claim])
    lines = judged_tables.overview(table, trainings=claims).rows
    assert [[cell.line for cell in line[:3]] for line in lines] == [
        ["κ of top-1 match", "b − a (3 pairs of trainings)", "better"],
        *(["Top-1 match", f"b{seed} − a{seed}", "better"] for seed in range(3)),
    ]
    assert lines[0][3].line == "+0.050 [+0.010, +0.090]"
    alone = judged_tables.overview(table[table["metric"] == "top1_match_kappa"], trainings=claims)
    assert len(alone.rows) == 1 and alone.caption == "Verdicts: b against a (3 pairs of trainings)"


def test_a_claim_about_trainings_hides_no_pair_that_is_not_in_it() -> None:
    """A single model beside two groups of trainings has a verdict of its own."""
    pairs = [judged(kappa(), checkpoint=f"b{seed}", reference=f"a{seed}", group="b") for seed in range(3)]
    single = judged(
        kappa(), -0.2, checkpoint="c", reference="a0", verdict="lower", judgement="worse", group="c"
    )
    claims = pd.DataFrame([judged(kappa(), 0.05) | {"trainings": 3}])
    lines = judged_tables.overview(frame([*pairs, single], judged=True), trainings=claims).rows
    assert [[cell.text for cell in line[1:3]] for line in lines] == [
        ["b − a (3 pairs of trainings)", "better"],
        ["c − a0", "worse"],
    ]


def test_where_no_ordinary_token_is_compared_the_others_are_read() -> None:
    rows = [judged(("blocks.1", "prefix", metric, "")) for metric in ("top1_match", "match_by_input")]
    read = judged_tables.read_first(frame(rows, judged=True), None)
    assert read["metric"].tolist() == ["top1_match", "match_by_input"]
    # Among ordinary tokens, those that are read first come in their order, and one that is asked for last.
    rows = [
        judged(("blocks.1", "patch", *which))
        for which in (("match_by_input", ""), ("top1_match", ""), kappa()[2:])
    ]
    table = frame([*rows, judged(("blocks.1", "prefix", "top1_match", ""))], judged=True)
    assert judged_tables.read_first(table, None)["metric"].tolist() == ["top1_match_kappa", "top1_match"]
    with_extra = judged_tables.read_first(table, "match_by_input")["metric"].tolist()
    assert with_extra == ["top1_match_kappa", "top1_match", "match_by_input"]


def test_the_opening_table_is_short_and_has_no_interval_that_one_lacks() -> None:
    rows = [judged(kappa(), checkpoint=f"b{number}") for number in range(12)]
    table = judged_tables.overview(frame(rows, judged=True))
    assert len(table.rows) == 10 and table.caption == "Verdicts, the first 10 of 12"
    same = judged(kappa("blocks.3"), 0.0, verdict="identical", judgement="", sim_low=NAN, sim_high=NAN)
    (line,) = judged_tables.overview(frame([judged(kappa()), same], judged=True)).rows
    assert [cell.line for cell in line][1:] == ["better (1 of 2), same (1 of 2)", "+0.000 to +0.100"]


def test_a_narrow_window_holds_all_but_what_it_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=80))
    (screen,) = tables.comparison_tables(frame(COMPARED["metrics"], judged=True), full=False)
    (first, _) = judged_tables.tables(frame(COMPARED["metrics"], judged=True))
    assert on_screen([screen])[0] == list(first.columns)[:-2]


def test_shots_are_called_shots() -> None:
    (table,) = judged_tables.tables(frame(COMPARED["shots"], judged=True))
    assert table.columns[0] == "shots" and [line[0].text for line in table.rows] == ["1", "10"]
    assert on_screen(tables.comparison_tables(frame(COMPARED["shots"], judged=True)))[1][0] == "1"


def test_what_is_0_everywhere_is_one_sentence(tmp_path: Path) -> None:
    lines = [
        judged((layer, tokens, f"{kind}_contagion{end}", ""), 0.0 if kind != "attention" else 0.1,
               **(ZERO | {"judgement": ""} if kind != "attention" else {"judgement": ""}))
        for layer in ("blocks.1", "blocks.3")
        for tokens in ("patch", "prefix")
        for kind in ("batch", "token", "attention")
        for end in ("", "_distance")
    ]  # fmt: skip
    table = frame(lines, judged=True)
    *said, zero = judged_tables.sentences(families(table), table)
    assert zero == (
        "0 throughout, for every checkpoint (360 images): batch contagion, batch contagion: distance, token contagion, "
        "token contagion: distance."
    )
    assert [text.split(" (")[0] for text in said] == ["Attention contagion", "Attention contagion: distance"]
    shown = judged_tables.tables(table)
    assert [one.caption.split(",")[0] for one in shown] == [
        "Attention contagion (attention_contagion", "Attention contagion: distance (attention_contagion_distance",
    ]  # fmt: skip
    short = tables.comparison_tables(table, full=False)
    assert [str(one.title) for one in short] == [shown[0].caption]
    assert len(judged_tables.tables(table, extra="batch_contagion")) == 4, (
        "patches and CLS of what was asked about"
    )
    (run,) = read_runs([run_of(table, tmp_path)])
    assert findings([run])[0].sentences[-2] == zero
    assert "(360 patients): " in judged_tables.sentences(families(table), table.assign(unit="patient"))[-1]
    nothing = table[table["metric"].str.startswith("batch")]
    assert not judged_tables.tables(nothing) and len(judged_tables.sentences(families(nothing), nothing)) == 1


def test_the_sets_of_experts_stand_beside_the_first_choice() -> None:
    sets = [judged(("blocks.1", "patch", name, null), 0.0, verdict="same", judgement="")
            for name, null in (("top2_set_match", ""), ("top2_set_match_kappa", "pooled"),
                               ("top2_set_match_kappa", "image"))]  # fmt: skip
    other = [judged(("blocks.1", "patch", "top2_match", ""))]
    for severity in (NAN, 0.2):
        table = frame([row | {"severity": severity} for row in (*MATCH, *sets, *other)], judged=True)
        said = judged_tables.sentences(families(table), table)
        assert [text.split(" (")[0] for text in said] == [
            "κ of top-2 match, any order", "κ of top-2 match, any order, within image", "Top-2 match, any order",
            "κ of top-1 match",
        ]  # fmt: skip
        assert "top2_set_match_kappa" in " ".join(one.caption for one in judged_tables.tables(table))
