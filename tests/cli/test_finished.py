"""A command whose run is finished: its result is printed, nothing is computed, and it is no error."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from moeprobe.results.folder import RUN, OutputFolder
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.records import RECORD, scan
from tests.commands import Trained, refused, run


def times_in(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("noise-sweep --limit 24 --sigmas 0,0.1", marks=[pytest.mark.slow, pytest.mark.promise]),
        "match-ratio --limit 24",
        "eval --limit 24",
        "discontinuity --limit 1 --layers first",
        pytest.param("routes --limit 24", marks=[pytest.mark.slow, pytest.mark.promise]),
    ],
)
def test_a_finished_probe_prints_its_table(trained: Trained, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    arguments = (*command.split(), *trained.values(), "--out", out)
    first = run(*arguments)
    assert first.exit_code == 0 and "is finished" not in first.stderr, first.output
    before = times_in(out)
    again = run(*arguments)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert again.stderr == f"{out} is finished; --overwrite repeats it.\n"
    told = json.loads(run(*arguments, "--json").stdout)
    assert len(told["table"]) == len((out / "table.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert "holds a finished run of something else; add --overwrite" in refused(*arguments, "--seed", 7)
    assert times_in(out) == before
    assert_its_files_are_declared(out)


@pytest.mark.pictures
def test_a_finished_run_without_a_table_names_its_files(trained: Trained, tmp_path: Path) -> None:
    overlay = ("overlay", trained["prc"], "--count", 1, "--out", tmp_path / "overlay")
    correspond = ("correspond", trained["prc"], "--count", 1, "--out", tmp_path / "correspond")
    trace = ("trace", "record", trained["prc"], "--limit", 3, "--out", tmp_path / "trace")
    shard = ("confidence", trained["prc"], "--limit", 40, "--shard", "1/2", "--out", tmp_path / "shard")
    for arguments in (overlay, correspond, trace, shard):
        first = run(*arguments, "--json")
        assert first.exit_code == 0, first.output
        again = run(*arguments)
        assert again.exit_code == 0 and "is finished; --overwrite repeats it." in again.stderr
        assert f"Written to {arguments[-1]}/" in again.stdout
        repeated = json.loads(run(*arguments, "--json").stdout)
        assert_same_content(repeated, json.loads(first.stdout))
        assert_its_files_are_declared(arguments[-1])


def assert_its_files_are_declared(out: Path) -> None:
    """What a run writes is known by name where the folder was copied without its record."""
    (out / RECORD).unlink()
    assert not scan(out, RUN).foreign


def assert_same_content(repeated: dict[str, Any], first: dict[str, Any]) -> None:
    """Numbers have the digits of their file; figures are named in the order of their names."""
    assert list(repeated) == list(first)
    for key, value in first.items():
        if key in ("patches", "pairs"):
            pd.testing.assert_frame_equal(pd.DataFrame(repeated[key]), pd.DataFrame(value))
        elif key == "files":
            assert sorted(repeated[key]) == sorted(value)
        else:
            assert repeated[key] == value


def test_a_finished_run_that_cannot_be_read_is_a_sentence(trained: Trained, tmp_path: Path) -> None:
    arguments = ("overlay", trained["prc"], "--count", 1, "--out", tmp_path / "out")
    assert run(*arguments).exit_code == 0
    (tmp_path / "out" / "table.json").write_text("[]")
    assert "table.json is not as moeprobe wrote it" in refused(*arguments, "--json")


def test_what_fails_after_the_mark_is_no_error(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part files cannot be removed: the run is finished nevertheless, and the next one removes them."""
    arguments = ("confidence", trained["prc"], "--limit", 24, "--out", tmp_path / "out")

    def fail(*_: Any) -> None:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as failing:
        failing.setattr(RunFolder, "remove", fail)
        assert run(*arguments).exit_code == 0
        assert list((tmp_path / "out" / "parts").iterdir())
    assert run(*arguments).exit_code == 0
    assert not (tmp_path / "out" / "parts").exists()


def test_a_request_that_cannot_be_read_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OutputFolder(tmp_path / "out", {"kind": "sweep"}) as folder:
        folder.finish({})
    opened = os.open

    def fail(path: Any, *arguments: Any, **keywords: Any) -> int:
        if str(path).endswith("run.json"):
            raise OSError(116, os.strerror(116), str(path))
        return opened(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", fail)
    said = refused("confidence", "--data", "digits", tmp_path / "nosuch", "--out", tmp_path / "out")
    assert "Stale file handle" in said or "nosuch" in said
    with pytest.raises(Exception, match=r"Cannot read .*run\.json: Stale file handle"):
        OutputFolder(tmp_path / "out", {"kind": "sweep"})


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("routes --limit 12", "--count 1"),
        pytest.param(
            "discontinuity --limit 2 --layers first",
            "--count 1",
            marks=[pytest.mark.slow, pytest.mark.promise],
        ),
        ("discontinuity --limit 1 --layers first", "--pick largest-jump"),
        ("correspond --count 1", "--lines 3"),
    ],
)
def test_a_run_with_other_figures_is_another_run(
    trained: Trained, tmp_path: Path, command: str, other: str
) -> None:
    arguments = (*command.split(), trained["prc"], "--out", tmp_path / "out")
    assert run(*arguments).exit_code == 0
    assert "figures" not in json.loads((tmp_path / "out" / "run.json").read_text()), "as of earlier runs"
    assert "holds a finished run of something else" in refused(*arguments, *other.split())
    assert run(*arguments, *other.split(), "--overwrite").exit_code == 0
    assert "is finished" in run(*arguments, *other.split()).stderr


@pytest.mark.slow
@pytest.mark.promise
def test_runs_with_other_figures_are_compared(trained: Trained, tmp_path: Path) -> None:
    for name, count in (("baseline", 1), ("prc", 2)):
        arguments = ("routes", trained[name], "--limit", 24, "--count", count, "--out", tmp_path / name)
        assert run(*arguments).exit_code == 0
    assert run("compare", tmp_path / "baseline", tmp_path / "prc").exit_code == 0


@pytest.mark.parametrize("command", ["overlay", "correspond", "discontinuity"])
def test_an_edited_file_is_another_image(trained: Trained, tmp_path: Path, command: str) -> None:
    image = tmp_path / "image.png"
    arguments = (command, trained["prc"], "--file", image, "--out", tmp_path / "out")
    Image.new("RGB", (32, 32), "red").save(image)
    assert run(*arguments).exit_code == 0
    assert "is finished" in run(*arguments).stderr
    Image.new("RGB", (32, 32), "blue").save(image)
    assert "holds a finished run of something else" in refused(*arguments)


@pytest.mark.pictures
@pytest.mark.parametrize(
    "command",
    [
        "confidence --limit 12",
        pytest.param("overlay --count 1", marks=[pytest.mark.slow, pytest.mark.promise]),
        "correspond --count 1",
    ],
)
def test_a_finished_run_without_svg_figures_says_so(trained: Trained, tmp_path: Path, command: str) -> None:
    arguments = (*command.split(), trained["prc"], "--out", tmp_path / "out")
    assert run(*arguments).exit_code == 0
    assert "out is finished without SVG figures; add --overwrite to draw them" in refused(*arguments, "--svg")
    assert run(*arguments, "--svg", "--overwrite").exit_code == 0
    assert "is finished" in run(*arguments, "--svg").stderr
    assert "is finished" in run(*arguments).stderr
