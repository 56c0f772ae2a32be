"""What is no run gets one sentence, and nothing outside of a run is read."""

import csv
import json
import os
import re
from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.results import finished
from moeprobe.studies.report.reading import read_runs
from tests.commands import refused
from tests.studies.report.making import draw, sidecar, write_frames, write_run, write_sidecar


def test_what_is_no_finished_run(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    run = write_run(tmp_path / "runs" / "match")
    assert "There is no folder" in refused("report", tmp_path / "none", *out)
    (tmp_path / "foreign").mkdir()
    assert "is not an output folder of moeprobe" in refused("report", tmp_path / "foreign", *out)
    assert f"a folder of 1 run. Name the runs to report, e.g. moeprobe report {run}" in refused(
        "report", tmp_path / "runs", *out
    )
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


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"skipped_images": 3}, "skipped_images: input should be a valid list"),
        ({"skipped_images": [3]}, r"skipped_images\.0: input should be a valid string"),
        ({"request": {"kind": "eval", "analyses": 3}}, r"request\.analyses: input should be a valid list"),
        ({"request": {"kind": "eval", "view": "blur"}}, r"request\.view"),
        ({"request": {"kind": "eval", "severities": ["a"]}}, r"request\.severities"),
        ({"checkpoints": {"a": {"training": 3}}}, r"checkpoints\.a\.training"),
        ({"notes": 3}, "notes"),
        ({"versions": []}, "versions"),
    ],
)
def test_a_sidecar_with_fields_of_other_types_is_one_sentence(
    tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    path = write_run(tmp_path / "run")
    content = json.loads((path / "table.json").read_text())
    write_sidecar(path, content | changed)
    said = refused("report", path, "--out", tmp_path / "out")
    assert re.search(f"not as moeprobe wrote it \\({says}", said)
    with pytest.raises(UserError, match=says):
        finished.read(path)


@pytest.mark.parametrize("what", ["deep", "device", "fifo"])
def test_a_sidecar_that_is_none_is_neither_read_nor_waited_for(tmp_path: Path, what: str) -> None:
    path = write_run(tmp_path / "run")
    (path / "table.json").unlink()
    if what == "deep":
        (path / "table.json").write_text("[" * 100_000)
    elif what == "device":
        (path / "table.json").symlink_to("/dev/zero")
    else:
        os.mkfifo(path / "table.json")
    assert "Cannot read" in refused("report", path, "--out", tmp_path / "out")
    with pytest.raises(UserError, match="Cannot read"):
        finished.read(path)


def test_a_table_that_is_damaged_is_one_sentence(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    text = (path / "table.csv").read_text()
    (path / "table.csv").write_text(text.replace("ci_low", "ci_below", 1))
    assert "it lacks ci_low" in refused("report", path, "--out", tmp_path / "out")
    (path / "table.csv").write_text(text.replace(",", ",\0", 1))
    assert "no text" in refused("report", path, "--out", tmp_path / "out")


@pytest.mark.parametrize("name", ["table.csv", "comparison.csv"])
def test_a_table_of_checkpoints_that_the_sidecar_does_not_name(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "run")
    (path / name).write_text((path / name).read_text().replace(",b,", ",renamed,"))
    said = "is about 'renamed', which table.json does not name"
    assert said in refused("report", path, "--out", tmp_path / "out")
    with pytest.raises(UserError, match=said):
        finished.read_result(path)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = (run / "table.csv").read_text()
    (run / "table.csv").write_text(text.replace("0.354", "many"))
    assert "could not convert string to float" in refused("report", run, "--out", tmp_path / "out")


@pytest.mark.parametrize("file", ["../secret.png", "{absolute}", "figures/away.png", "figures/none.png"])
def test_nothing_outside_of_a_run_is_read(tmp_path: Path, file: str) -> None:
    secret = tmp_path / "secret.png"
    draw(secret)
    run = write_frames(tmp_path / "run")
    (run / "figures" / "away.png").symlink_to(secret)
    named = file.format(absolute=secret)
    write_sidecar(run, sidecar("overlay", ["a"], frames={"blocks.3": [{"severity": 0, "file": named}]}))
    said = refused("report", run, "--out", tmp_path / "out")
    assert ("lacks 1 of its 1 frames, such as" if "none" in file else "leads out of its run") in said


def test_a_link_to_itself(tmp_path: Path) -> None:
    loop, run = tmp_path / "loop", write_run(tmp_path / "run")
    loop.symlink_to(loop)
    said = "Cannot read .*loop.*: Too many levels of symbolic links"
    assert "There is no folder" in refused("report", loop, "--out", tmp_path / "out")
    (run / "figures" / "loop.png").symlink_to("loop.png")
    assert re.search(said, refused("report", run, "--out", tmp_path / "out"))
    with pytest.raises(UserError, match=said):
        read_runs([run])


def test_a_figure_whose_name_has_a_digit_that_is_no_number(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pictures=("1²10.png", "1²2.png"))
    assert [picture.name for picture in read_runs([run])[0].pictures] == ["1²2.png", "1²10.png"]


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


def test_a_folder_of_runs_is_told_how_to_name_them(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        write_run(tmp_path / "reports" / name)
    # A table of something else is no run.
    (tmp_path / "reports/other").mkdir()
    (tmp_path / "reports/other/table.json").write_text("{}")
    with pytest.raises(UserError) as found:
        read_runs([tmp_path / "reports"])
    named = re.search(
        r"a folder of 2 runs. Name the runs to report, e\.g\. moeprobe report (.*)", found.value.sentence
    )
    assert named is not None
    assert len(read_runs(named[1].split())) == 2
