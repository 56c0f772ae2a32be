"""A series of comparisons in CI: the history counts looks, and refuses what would be a choice made after looking."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.studies.looks import LookSeries
from tests.commands import refused, run

# Intervals are asserted.
pytestmark = pytest.mark.resamples
NAMES = ("reference", "first", "second", "third")
FIXED = {"data": "digits", "fail_if_worse": "accuracy"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each of four recordings of the same 40 requests."""
    root = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        lines = [
            json.dumps(
                {"id": f"r{request}", "layer": "mlp", "experts": rng.integers(4, size=(6, 1)).tolist()}
            )
            for request in range(40)
        ]
        (root / f"{name}.jsonl").write_text("\n".join(lines))
        api.import_trace(root / f"{name}.jsonl", root / f"{name}.parquet", num_experts=4)
        api.analyze_trace(root / f"{name}.parquet", out=root / name, figures=False)
    return {name: root / name for name in NAMES}


def test_looks_are_counted_and_a_checkpoint_seen_before_is_the_same_look(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    history, reference = tmp_path / "ci" / "looks.json", runs["reference"]
    series: dict[str, Any] = {"looks": 2, "history": history}
    alone = api.compare([reference, runs["first"]])
    found = [api.compare([reference, runs[name]], **series) for name in ("first", "second", "first")]
    assert [comparison.sidecar["look"] for comparison in found] == [1, 2, 1]
    pd.testing.assert_frame_equal(found[0].table, found[2].table)
    assert len(json.loads(history.read_text())["entries"]) == 2
    assert [path.name for path in history.parent.iterdir()] == ["looks.json"]
    # Each look has half of the level; the interval of the value alone stays.
    judged = alone.table["sim_low"].notna()
    assert judged.any()
    entropy = alone.table["metric"] == "load_entropy"
    assert (found[0].table["sim_low"] < alone.table["sim_low"])[judged & entropy].all()
    pd.testing.assert_series_equal(found[0].table["ci_low"], alone.table["ci_low"])
    with pytest.raises(UserError, match="All 2 looks of"):
        api.compare([reference, runs["third"]], **series)
    with pytest.raises(UserError, match="third is not the reference of the looks"):
        api.compare([runs["third"], runs["first"]], **series)
    with pytest.raises(UserError, match="counts a series of 2 looks, not 3"):
        api.compare([reference, runs["first"]], looks=3, history=history)


def test_what_the_command_says_and_writes(runs: dict[str, Path], tmp_path: Path) -> None:
    arguments = ("compare", runs["reference"], runs["first"], "--history", tmp_path / "looks.json")
    result = run(*arguments, "--looks", 5, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "look 1 of 5: intervals hold in all 5 at once (Bonferroni)" in result.output
    sidecar = json.loads((tmp_path / "out" / "table.json").read_text())
    assert (sidecar["look"], sidecar["request"]["looks"]) == (1, 5)
    # The folder is finished, and the look stays the first one.
    with pytest.warns(RunWarning, match="is finished"):
        again = api.compare(
            [runs["reference"], runs["first"]], history=tmp_path / "looks.json", looks=5, out=tmp_path / "out"
        )
    assert again.sidecar["look"] == 1
    report = run("report", tmp_path / "out", "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    pages = "".join(path.read_text() for path in (tmp_path / "report").glob("*.md"))
    assert "1 of 5; simultaneous intervals hold in all 5 at once" in pages
    assert "history takes --looks N beside it" in refused(*arguments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "shapes"}, 'have data "digits", and not "shapes"'),
        ({"fail_if_worse": "top1_match"}, 'have fail_if_worse "accuracy", and not "top1_match"'),
        ({"limit": 5}, "have limit null, and not 5"),
    ],
)
def test_nothing_may_change_from_look_to_look(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    series = LookSeries(3, tmp_path / "looks.json")
    assert series.take({"a": "1", "b": "2"}, ["a"], FIXED, failures=0) == 1
    for refuse in (
        lambda: series.check({"a": "1", "c": "3"}, FIXED | changed),
        lambda: series.take({"a": "1", "c": "3"}, ["a"], FIXED | changed, failures=0),
    ):
        with pytest.raises(UserError, match=message):
            refuse()
    assert series.take({"renamed": "1", "c": "3"}, ["renamed"], FIXED, failures=1) == 2


def test_a_look_is_one_new_checkpoint(runs: dict[str, Path], tmp_path: Path) -> None:
    """Two comparisons in one command would have the level of one."""
    history = tmp_path / "looks.json"
    both = (runs["reference"], runs["first"], runs["second"])
    said = refused("compare", *both, "--looks", 1, "--history", history)
    assert "compares the reference with one new checkpoint, and these are 3" in said
    by_hand = [f"{runs['reference']}={runs['first']}", f"{runs['second']}={runs['third']}"]
    assert "these are 4 checkpoints" in refused("compare", *by_hand, "--looks", 2, "--history", history)
    assert not history.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"margin": 0.3}, "have margin 0.02, and not 0.3"),
        ({"equivalent_within": 0.05}, "have equivalent_within null, and not 0.05"),
    ],
)
def test_margins_may_not_change_after_looking(
    changed: dict[str, float], message: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    """Another margin makes "the same" of what was worse."""
    series: dict[str, Any] = {"looks": 2, "history": tmp_path / "looks.json", "margin": 0.02}
    api.compare([runs["reference"], runs["first"]], **series)
    for name in ("first", "second"):
        with pytest.raises(UserError, match=message):
            api.compare([runs["reference"], runs[name]], **series | changed)


def test_what_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "looks.json"
    series = LookSeries(3, path)
    with pytest.raises(UserError, match="Nobody can tell b from other checkpoints"):
        series.check({"a": "1", "b": None}, FIXED)
    path.write_text('{"looks": "3"}')
    with pytest.raises(UserError, match="is not as moeprobe wrote it"):
        series.check({"a": "1", "b": "2"}, FIXED)
    with pytest.raises(UserError, match="from 1 up"):
        LookSeries.of(0, path)
    with pytest.raises(UserError, match="beside it"):
        LookSeries.of(2, None)
    assert LookSeries.of(None, None) is None
