"""An output folder is opened under the rules of resuming, and is never somebody else's."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import runs
from moeprobe.accumulators import Accumulator, Cell
from moeprobe.errors import UserError
from moeprobe.runs import OutputFolder, Result, provenance
from moeprobe.tables import frame, image_table, read_images
from tests.routings import routing

REQUEST: dict[str, Any] = {"kind": "sweep", "severities": (0.0, 0.1), "limit": None}


def result(*, comparison: bool) -> Result:
    accumulator = Accumulator()
    accumulator.add(Cell("blocks.1"), ["x"], {"load": routing(1).selected.long().numpy()[:, 0]})
    rows: list[dict[str, Any]] = [{"checkpoint": "a", "value": 0.5}]
    return Result(
        table=frame(rows),
        comparison=frame(rows, comparison=True) if comparison else None,
        images=image_table(accumulator, checkpoint="a"),
        sidecar={"request": REQUEST},
    )


@pytest.mark.parametrize("comparison", [False, True])
def test_a_finished_run_is_whole_and_without_part_files(tmp_path: Path, comparison: bool) -> None:
    folder = OutputFolder(tmp_path / "out", REQUEST)
    folder.parts.mkdir()
    (folder.parts / "a-00000.parquet").write_bytes(b"part")
    folder.write(result(comparison=comparison))
    folder.finish(result(comparison=comparison).sidecar)
    names = {"run.json", "table.csv", "images.parquet", "table.json"} | (
        {"comparison.csv"} if comparison else set()
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert pd.read_csv(tmp_path / "out" / "table.csv")["value"].tolist() == [0.5]
    assert read_images(tmp_path / "out" / "images.parquet").num_rows == 1


def test_the_mark_of_a_finished_run_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise UserError("The disk is full.")

    folder = OutputFolder(tmp_path / "out", REQUEST)
    monkeypatch.setattr(runs, "write_images", full)
    with pytest.raises(UserError, match="full"):
        folder.write(result(comparison=False))
    assert not (tmp_path / "out" / "table.json").exists()
    OutputFolder(tmp_path / "out", REQUEST)  # goes on


def test_an_unfinished_run_of_the_same_is_gone_on_with(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, REQUEST)
    folder.parts.mkdir()
    (folder.parts / "a-00000.parquet").write_bytes(b"part")
    again = OutputFolder(tmp_path, json.loads(json.dumps(REQUEST)))
    assert (again.parts / "a-00000.parquet").exists()


def test_other_runs_need_overwrite(tmp_path: Path) -> None:
    OutputFolder(tmp_path, REQUEST)
    other = REQUEST | {"limit": 5}
    (tmp_path / "parts").mkdir()
    with pytest.raises(UserError, match=r"unfinished run of something else.*add overwrite=True"):
        OutputFolder(tmp_path, other)
    OutputFolder(tmp_path, REQUEST).finish(result(comparison=True).sidecar)
    with pytest.raises(UserError, match=r"finished run.*add overwrite=True"):
        OutputFolder(tmp_path, REQUEST)
    OutputFolder(tmp_path, other, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text())["limit"] == 5


@pytest.mark.parametrize("content", ["not json", "[1]", '{"name": "somebody else"}', "\udcff"])
def test_foreign_folders_are_never_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a folder of moeprobe"):
            OutputFolder(tmp_path, REQUEST, overwrite=overwrite)
    # Others too call a file run.json.
    (tmp_path / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match="not a folder of moeprobe"):
        OutputFolder(tmp_path, REQUEST, overwrite=True)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_file_or_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        OutputFolder(tmp_path / "file", REQUEST)
    with pytest.raises(UserError, match="Cannot write"):
        OutputFolder(tmp_path / "file" / "below", REQUEST)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    OutputFolder(tmp_path / "out", REQUEST)
    assert (tmp_path / "out" / "run.json").exists()


def test_provenance_says_what_computed() -> None:
    found = provenance()
    assert {"moeprobe", "python", "torch", "numpy", "timm"} <= set(found["versions"])
    assert all(re.match(r"\d", version) for version in found["versions"].values())
    assert found["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["git_commit"])


def test_another_process_may_begin_the_same_folder_at_the_same_moment(tmp_path: Path) -> None:
    (tmp_path / ".run.json.abcdef.tmp").write_text("{")
    OutputFolder(tmp_path, REQUEST)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run.json").unlink()
    with pytest.raises(UserError, match="not a folder of moeprobe"):
        OutputFolder(tmp_path, REQUEST)
