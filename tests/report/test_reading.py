"""What is no run gets one sentence, and nothing outside of a run is read."""

import csv
import json
from pathlib import Path

import pytest

from moeprobe.report.reading import read_runs
from tests.commands import refused
from tests.report.making import draw, sidecar, write_frames, write_run, write_sidecar


def test_what_is_no_finished_run(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    run = write_run(tmp_path / "runs" / "match")
    assert "There is no folder" in refused("report", tmp_path / "none", *out)
    (tmp_path / "foreign").mkdir()
    assert "is not an output folder of moeprobe" in refused("report", tmp_path / "foreign", *out)
    assert f"name them: {tmp_path / 'runs'}/*" in refused("report", tmp_path / "runs", *out)
    (tmp_path / "foreign" / "run.json").write_text("{}")
    assert "is not finished" in refused("report", tmp_path / "foreign", *out)
    assert "is given twice" in refused("report", run, run.parent / "." / run.name, *out)
    (tmp_path / "link").symlink_to(run)
    assert "is given twice" in refused("report", run, tmp_path / "link", *out)
    for content in (
        "{",
        "[]",
        '{"request": {}}',
        '{"request": {"kind": 3}}',
        '{"request": {"kind": "a"}, "checkpoints": []}',
    ):
        (run / "table.json").write_text(content)
        refused("report", run, *out)
    assert not (tmp_path / "out").exists()


def test_numbers_that_are_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = (run / "table.csv").read_text()
    (run / "table.csv").write_text(text.replace("0.354", "many"))
    assert "something else than numbers in value" in refused("report", run, "--out", tmp_path / "out")


@pytest.mark.parametrize("file", ["../secret.png", "{absolute}", "figures/away.png", "figures/none.png"])
def test_nothing_outside_of_a_run_is_read(tmp_path: Path, file: str) -> None:
    secret = tmp_path / "secret.png"
    draw(secret)
    run = write_frames(tmp_path / "run")
    (run / "figures" / "away.png").symlink_to(secret)
    named = file.format(absolute=secret)
    write_sidecar(run, sidecar("overlay", ["a"], frames={"blocks.3": [{"severity": 0, "file": named}]}))
    said = refused("report", run, "--out", tmp_path / "out")
    assert ("Cannot read" if "none" in file else "leads out of its run") in said


@pytest.mark.parametrize(
    "frames", [[], {"a": 3}, {"a": [{"severity": 0}]}, {"a": [{"severity": "x", "file": "figures/a.png"}]}]
)
def test_frames_that_cannot_be_read(tmp_path: Path, frames: object) -> None:
    run = write_frames(tmp_path / "run")
    write_sidecar(run, sidecar("overlay", ["a"], frames=frames))
    assert "frames that cannot be read" in refused("report", run, "--out", tmp_path / "out")


def test_frames_come_by_severity_and_stand_for_their_animation(tmp_path: Path) -> None:
    [run] = read_runs([write_frames(tmp_path / "run", severities=[0.0, 0.5, 0.1])])
    assert [(frame.severity, frame.picture.name) for frame in run.frames["blocks.3"]] == [
        (0.0, "overlay-blocks.3-000.png"), (0.1, "overlay-blocks.3-002.png"), (0.5, "overlay-blocks.3-001.png"),
    ]  # fmt: skip
    assert [picture.name for picture in run.pictures] == ["overlay-blocks.3-strip.png"]


def test_pictures_in_natural_order_and_png_before_svg(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pictures=("layer.10.png", "layer.9.png"))
    for name in ("layer.9.svg", "other.svg"):
        (run / "figures" / name).write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (run / "figures" / "notes.txt").write_text("no picture")
    [read] = read_runs([run])
    assert [picture.name for picture in read.pictures] == ["layer.9.png", "layer.10.png", "other.svg"]


def test_names_that_look_like_numbers_or_nothing_stay_names(tmp_path: Path) -> None:
    [run] = read_runs([write_run(tmp_path / "run", checkpoints=("nan", "007"))])
    assert run.table is not None
    assert set(run.table["checkpoint"]) == {"nan", "007"}
    assert run.table["value"].dtype == float
    assert run.table["severity"].isna().all()


NAMES = (
    "=HYPERLINK(1)",
    "+1",
    "-prc",
    "@sum",
    "\ttab",
    "\rcr",
    "＝wide",
    "'=quoted",
    "''-twice",
    "'plain",
    "a=b",
)


def test_no_cell_is_a_formula_and_names_come_back(tmp_path: Path) -> None:
    values = {("blocks.1", "patch", "top1_match", "pooled"): [(-0.5, -0.6, -0.4)] * len(NAMES)}
    folder = write_run(tmp_path / "run", checkpoints=NAMES, values=values)
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["checkpoint"] for row in rows] == [
        *(f"'{name}" for name in NAMES[:9]), "'plain", "a=b",
    ]  # fmt: skip
    assert {row["value"] for row in rows} == {"-0.5"}
    [run] = read_runs([folder])
    assert run.table is not None
    assert tuple(run.table["checkpoint"]) == NAMES
    assert set(run.table["value"]) == {-0.5}


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("seed-0/x/eval", "seed-1/x/eval", "seed-1/match")]
    assert [run.label for run in read_runs(paths)] == ["seed-0/x/eval", "seed-1/x/eval", "match"]


def test_a_table_of_another_kind_is_kept_as_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "unheard-of", pictures=())
    (run / "table.csv").write_text("what,how\nthis,3\n")
    (run / "comparison.csv").unlink()
    [read] = read_runs([run])
    assert read.table is None and read.images is None
    assert read.csvs["table.csv"].to_dict("records") == [{"what": "this", "how": "3"}]
    assert json.loads((run / "table.json").read_text())["request"]["kind"] == read.kind
