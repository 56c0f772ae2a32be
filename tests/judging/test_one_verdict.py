"""Every committed run through every surface that speaks: no two say another word, value or interval of one cell."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.registry import of_kind, scales
from moeprobe.judging import conclusions, differences
from moeprobe.judging.headlines import sentences_of
from moeprobe.judging.properties import judge_run
from moeprobe.judging.tables import overview, tables
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, FamilyWord, word_of
from moeprobe.metrics.registry import find
from moeprobe.results.finished import read_result
from moeprobe.results.numbers import interval, number
from moeprobe.studies.report.reading import Run, read_runs
from moeprobe.studies.report.summary import lead_of
from tests.sources import tracked_files

ROOT = Path(__file__).parents[2]
FOLDERS = sorted((ROOT / name).parent for name in tracked_files("reports/*/comparison.csv"))
CELL = ["checkpoint", "reference", "layer", "view", "severity", "tokens", "metric", "null"]
SCALES = scales()


def names(folders: list[Path]) -> list[str]:
    return [str(folder.relative_to(ROOT / "reports")) for folder in folders]


@pytest.fixture(params=FOLDERS, ids=names(FOLDERS))
def run(request: pytest.FixtureRequest) -> Run:
    return read_once(request.param)


@functools.cache
def read_once(folder: Path) -> Run:
    (read,) = read_runs([folder])
    return read


def expected_word(row: dict[str, Any]) -> str:
    """The rule once more: by the simultaneous interval, its margin, and the side that is better."""
    low, high, margin = row["sim_low"], row["sim_high"], row["margin"]
    if row["value"] == 0 and row["verdict"] == IDENTICAL:
        return IDENTICAL
    if low > 0 or high < 0:
        return "higher" if low > 0 else "lower"
    return "same" if -margin < low and high < margin else "no significant difference"


def test_every_word_follows_from_the_simultaneous_interval(run: Run) -> None:
    assert run.comparison is not None and len(run.comparison)
    judged = 0
    for row in run.comparison.to_dict("records"):
        if row["sim_low"] != row["sim_low"]:
            # Without an interval nothing is said of significance, be it of a maximum or of dead experts.
            assert row["verdict"] not in ("higher", "lower", "same", NO_DIFFERENCE), row
            assert row["judgement"] == "", row
            continue
        judged += 1
        assert row["verdict"] == expected_word(row), row
        better = find(row["metric"]).direction * {"higher": 1, "lower": -1}.get(row["verdict"], 0)
        assert row["judgement"] in ("", {1: "better", -1: "worse", 0: ""}[better])
        assert row["sim_low"] <= row["value"] <= row["sim_high"]
    assert judged or "few images" in set(run.comparison["verdict"])


def test_the_plain_interval_alone_would_say_more() -> None:
    """So that the test above can fail: cells whose own interval excludes 0 and that are called no difference."""
    tables_of = [pd.read_csv(folder / "comparison.csv") for folder in FOLDERS]
    table = pd.concat(tables_of)
    plain = (table["ci_low"] > 0) | (table["ci_high"] < 0)
    assert (plain & ~table["verdict"].isin(["higher", "lower"])).sum() > 50


def cells_said(run: Run) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield (row of the difference, surface, text) for every sentence about one cell."""
    for headline in run.headlines:
        rows = headline.differences[headline.which]
        if len(rows) == 1 and len(headline.rows[headline.which]) == 2:
            for text in sentences_of(run, headline):
                if "collapsed" not in text:
                    yield rows[0], "screen", text


def size_of(row: dict[str, Any]) -> str:
    """The difference with its interval as a sentence has it, without signs where a word says them."""
    if row["verdict"] in ("higher", "lower"):
        low, high = sorted((abs(row["sim_low"]), abs(row["sim_high"])))
        return interval({**row, "value": abs(row["value"]), "sim_low": low, "sim_high": high})
    return interval(row, signed=True)


def test_sentences_on_the_screen(run: Run) -> None:
    for row, _, text in cells_said(run):
        if row["sim_low"] != row["sim_low"] or row["verdict"] == IDENTICAL:
            continue
        assert size_of(row) in text, (row, text)
        sides = {"higher", "lower"} & set(re.findall(r"\bis (higher|lower)\b", text))
        assert sides == ({row["verdict"]} & {"higher", "lower"}), text
        assert_bounded(text)


def assert_bounded(text: str) -> None:
    """Whatever shows no significant difference says in the same text how large a loss is excluded."""
    assert (NO_DIFFERENCE in text) <= bool(re.search(r"excludes a (loss|difference) above \d", text)), text


def test_a_report_and_its_sections(run: Run) -> None:
    cells = {tuple(row[name] for name in CELL[:3]) for row in run.comparison.to_dict("records")}  # type: ignore[union-attr]
    verdicts = conclusions.judge([run], SCALES)
    for verdict in verdicts:
        row = verdict.difference
        assert tuple(row[name] for name in CELL[:3]) in cells
        in_layers = [
            other
            for headline in run.headlines
            for other in (headline.differences_in_layers or headline.differences[headline.which])
            if all(same(other[name], row[name]) for name in CELL if name != "layer")
        ]
        if "collapsed" not in verdict.word:
            assert verdict.word == FamilyWord.of([word_of(other) for other in in_layers]).word
        if row["value"] == row["value"]:
            assert interval(row, signed=True) in verdict.sentence
            assert_bounded(verdict.sentence)
            assert_bounded(verdict.text)
    lead = lead_of(run)
    if "Verdict: " in lead:
        first = next(v for v in verdicts if v.heading in lead)
        assert lead.endswith(f"Verdict: {first.text}.")


def same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


def test_a_comparison_and_the_action(run: Run) -> None:
    table = run.comparison
    assert table is not None
    sentences = differences.sentences(table)
    words_of: dict[tuple[str, str], set[str]] = {}
    for row in table.to_dict("records"):
        words_of.setdefault((row["metric"], row["null"]), set()).add(word_of(row))
    for (*_, metric, null), sentence in zip(
        sentences[differences.FAMILY].itertuples(index=False), sentences["sentence"], strict=True
    ):
        said = set(re.findall(r"\w+", sentence))
        assert_bounded(sentence)
        for side in ("better", "worse", "higher", "lower"):
            assert (side in said) <= (side in words_of.get((metric, null), set()))
    for layout in tables(table):
        assert all("[" not in cell.text for line in layout.rows for cell in line)
        for line in layout.rows:
            assert_bounded(" ".join(cell.text for cell in line))
    words = set().union(*words_of.values())
    for line in overview(table).rows:
        sides = {side for side in ("better", "worse", "higher", "lower") if side in line[-2].text}
        assert sides <= words
        assert_bounded(line[-2].text)


@pytest.mark.parametrize("folder", FOLDERS, ids=names(FOLDERS))
def test_an_audit_shows_values_and_difference_of_one_cell(folder: Path) -> None:
    if not (folder / "table.csv").exists():
        pytest.skip("a comparison has no values of its own")
    result = read_result(folder)
    kind = of_kind(result.sidecar.request.kind)
    entry = None if kind is None else audit_entry(kind)
    if entry is None or result.comparison is None:
        pytest.skip("this kind of run joins no audit")
    models = list(dict.fromkeys(result.table["checkpoint"]))
    if len(models) != 2:
        pytest.skip("an audit compares two models")
    commands = dict.fromkeys((item.name for item in entry.properties), "")
    for row in judge_run(entry.properties, result, run="run", classes=10, commands=commands, models=models):
        if not row["reference"]:
            continue
        assert_bounded(row["judgement"])
        cell = result.comparison
        for name in ("layer", "view", "severity", "metric", "null", "checkpoint"):
            cell = cell[[same(value, row[name]) for value in cell[name]]]
        (judged,) = cell[cell["tokens"].isin(["patch", "token", ""]) & cell["draw"].isna()].to_dict("records")
        assert (row["value"], row["checkpoint_value"], row["reference_value"]) == pytest.approx(
            (judged["value"], judged["checkpoint_value"], judged["reference_value"]), nan_ok=True
        )
        np.testing.assert_array_equal(
            (row["ci_low"], row["ci_high"]), (judged["sim_low"], judged["sim_high"])
        )
        assert row["value"] == pytest.approx(
            row["checkpoint_value"] - row["reference_value"], abs=1e-8, nan_ok=True
        )


def test_one_cell_in_two_runs_is_judged_alike() -> None:
    """A comparison of a finished run says what the run says."""
    for data in ("digits", "shapes"):
        ours = pd.read_csv(ROOT / "reports" / data / "noise-sweep" / "comparison.csv")
        theirs = pd.read_csv(ROOT / "reports" / data / "compare" / "comparison.csv")
        both = ours.merge(theirs, on=[*CELL, "draw"], suffixes=("", "_compared"))
        assert len(both) == len(theirs)
        for name in ("verdict", "judgement", "value", "sim_low", "sim_high"):
            pd.testing.assert_series_equal(both[name], both[f"{name}_compared"], check_names=False)


def test_numbers_are_written_alike() -> None:
    row = {"value": 0.0809, "sim_low": -0.0062, "sim_high": 0.1671, "flag": "", "metric": "accuracy"}
    row |= {"ci_low": 0.017, "ci_high": 0.143}
    assert interval(row, signed=True) == f"{number(0.0809, signed=True)} [-0.006, +0.167]"
