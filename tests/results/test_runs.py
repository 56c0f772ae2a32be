"""An output folder is opened under the rules of resuming, and is never somebody else's."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.location import LAST
from moeprobe.results import folder as runs
from moeprobe.results.folder import FinishedError, OutputFolder, Result
from moeprobe.results.sidecars import Sidecar, provenance
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import frame, image_table
from moeprobe.runtime.files import GUARDS, remove, write_text
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.records import LOCK, RECORD, Family
from tests.results.stores import read_images
from tests.routing.routings import routing

REQUEST: dict[str, Any] = {"kind": "sweep", "severities": (0.0, 0.1), "limit": None}


def result(*, comparison: bool) -> Result:
    accumulator = Accumulator()
    accumulator.add(Cell("blocks.1"), ["x"], {"load": routing(1).selected.long().numpy()[:, 0]})
    rows: list[dict[str, Any]] = [{"checkpoint": "a", "value": 0.5}]
    return Result(
        table=frame(rows),
        comparison=frame(rows, judged=True) if comparison else None,
        sums=of_table(image_table(accumulator, checkpoint="a")),
        sidecar=Sidecar({"request": REQUEST}),
    )


def begin(path: Path, request: dict[str, Any] = REQUEST, **how: bool) -> None:
    """Begin a run that is interrupted with a part done."""
    with OutputFolder(path, request, **how) as folder:
        write_text(folder.parts / "a-00000.parquet", "part")


def tree(path: Path) -> dict[str, bytes]:
    return {
        item.relative_to(path).as_posix(): item.read_bytes() for item in path.rglob("*") if item.is_file()
    }


@pytest.mark.parametrize("comparison", [False, True])
def test_a_finished_run_is_whole_and_without_part_files(tmp_path: Path, comparison: bool) -> None:
    with OutputFolder(tmp_path / "out", REQUEST) as folder:
        write_text(folder.parts / "a-00000.parquet", "part")
        folder.write(result(comparison=comparison))
        folder.finish(result(comparison=comparison).sidecar)
    names = {"run.json", "table.csv", "images.parquet", "table.json"} | (
        {"comparison.csv"} if comparison else set()
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {RECORD}
    assert pd.read_csv(tmp_path / "out" / "table.csv")["value"].tolist() == [0.5]
    assert read_images(tmp_path / "out" / "images.parquet").num_rows == 1
    _, *recorded = map(json.loads, (tmp_path / "out" / RECORD).read_text().splitlines())
    assert recorded == sorted(names)


def test_the_mark_of_a_finished_run_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise UserError("The disk is full.")

    monkeypatch.setattr(runs, "write", full)
    with pytest.raises(UserError, match="full"), OutputFolder(tmp_path / "out", REQUEST) as folder:
        folder.write(result(comparison=False))
    assert not (tmp_path / "out" / "table.json").exists()
    with OutputFolder(tmp_path / "out", REQUEST):  # goes on
        assert (tmp_path / "out" / "table.csv").exists()


def test_an_unfinished_run_of_the_same_is_gone_on_with(tmp_path: Path) -> None:
    begin(tmp_path)
    with OutputFolder(tmp_path, json.loads(json.dumps(REQUEST))) as again:
        assert (again.parts / "a-00000.parquet").exists()


def test_a_run_that_fails_before_it_has_anything_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing"), OutputFolder(tmp_path / "new" / "out", REQUEST):
        raise UserError("There is nothing to measure.")
    assert not (tmp_path / "new").exists()


def test_other_runs_need_overwrite(tmp_path: Path) -> None:
    begin(tmp_path)
    other = REQUEST | {"limit": 5}
    with pytest.raises(UserError, match=r"unfinished run of something else.*add overwrite=True"):
        OutputFolder(tmp_path, other)
    with OutputFolder(tmp_path, REQUEST) as folder:
        folder.finish(result(comparison=True).sidecar)
    with pytest.raises(UserError, match="is finished; add overwrite=True"):
        OutputFolder(tmp_path, REQUEST)
    with OutputFolder(tmp_path, other, overwrite=True):
        pass
    assert set(tree(tmp_path)) == {"run.json", RECORD}
    assert json.loads((tmp_path / "run.json").read_text())["limit"] == 5


@pytest.mark.parametrize("content", ["not json", "[1]", '{"name": "somebody else"}', "\udcff", "[" * 100_000])
def test_foreign_folders_are_never_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a folder of moeprobe"):
            OutputFolder(tmp_path, REQUEST, overwrite=overwrite)
    # Others too call a file run.json.
    (tmp_path / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    before = tree(tmp_path)
    with pytest.raises(UserError, match="not a folder of moeprobe"):
        OutputFolder(tmp_path, REQUEST, overwrite=True)
    assert tree(tmp_path) == before


def test_files_in_a_folder_of_neither_record_nor_question_are_somebody_elses(tmp_path: Path) -> None:
    """Whatever they are called; in a run inside of one of a time before records too."""
    names = ("table.csv", "table.json", "figures/a.png")
    for place in (tmp_path / "other", tmp_path / "run" / "probe"):
        for name in names:
            (place / name).parent.mkdir(exist_ok=True, parents=True)
            (place / name).write_text("mine")
        (place / "run.json").write_text('{"name": "somebody else"}')
    (tmp_path / "run" / "run.json").write_text('{"kind": "compare"}')
    before = tree(tmp_path)
    with pytest.raises(UserError, match="not a folder of moeprobe"):
        OutputFolder(tmp_path / "other", REQUEST, overwrite=True)
    with pytest.raises(UserError, match=r"did not write: probe/"):
        OutputFolder(tmp_path / "run", REQUEST, overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("recorded", [True, False])
def test_the_folder_of_a_training_is_called_one(tmp_path: Path, recorded: bool) -> None:
    with RunFolder(tmp_path, Family("training", lambda _: ())) as folder:
        write_text(folder.path / LAST, "")
    if not recorded:
        (tmp_path / RECORD).unlink()
    said = "folder of a training, not of a probe" if recorded else "holds a checkpoint and no probe"
    for overwrite in (False, True):
        with pytest.raises(UserError, match=rf"{said}; choose another"):
            OutputFolder(tmp_path, REQUEST, overwrite=overwrite)


def test_what_a_run_leaves_that_is_killed_after_its_mark_goes_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "remove", lambda *_: None)
        with OutputFolder(tmp_path, REQUEST) as folder:
            write_text(folder.parts / "a-00000.parquet", "part")
            folder.finish({})
    (tmp_path / LOCK).touch()
    with pytest.raises(FinishedError, match="is finished; add overwrite=True to repeat it"):
        OutputFolder(tmp_path, REQUEST)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "table.json", RECORD}
    with pytest.raises(UserError, match="finished run of something else"):
        OutputFolder(tmp_path, REQUEST | {"limit": 5})


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "foreign", ["notes.txt", "figures/mine.txt", "data/photo.png", "parts/mine", ".git/config"]
)
def test_overwrite_names_what_it_would_not_replace(tmp_path: Path, foreign: str, recorded: bool) -> None:
    """Whether the folder has a record, or is of a time before there was one."""
    begin(tmp_path)
    if not recorded:
        (tmp_path / RECORD).unlink()
    (tmp_path / foreign).parent.mkdir(exist_ok=True)
    (tmp_path / foreign).write_text("mine")
    before = tree(tmp_path)
    named = (
        foreign if foreign.partition("/")[0] in ("notes.txt", "parts") else f"{foreign.partition('/')[0]}/"
    )
    if not recorded and foreign.startswith("figures"):
        named = foreign  # where a run has its figures
    with pytest.raises(UserError, match=re.escape(named)):
        OutputFolder(tmp_path, REQUEST | {"limit": 5}, overwrite=True)
    assert tree(tmp_path) == before


def test_a_file_beside_a_run_needs_no_overwrite_to_stay(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with OutputFolder(tmp_path, REQUEST) as folder:
        folder.finish({})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_of_a_time_before_records_is_replaced(tmp_path: Path) -> None:
    files = ("run.json", "table.json", "table.csv", "figures/sweep.png", "probe/run.json", "probe/table.csv")
    for name in files:
        (tmp_path / "out" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "out" / name).write_text('{"kind": "compare"}')
    with OutputFolder(tmp_path / "out", REQUEST, overwrite=True):
        pass
    assert set(tree(tmp_path / "out")) == {"run.json", RECORD}


def test_a_run_inside_a_run_is_replaced_with_it(tmp_path: Path) -> None:
    with OutputFolder(tmp_path, REQUEST):
        begin(tmp_path / "probe")
    (tmp_path / "mine").mkdir()
    with OutputFolder(tmp_path / "mine", REQUEST):
        pass
    with pytest.raises(UserError, match="mine/"):
        OutputFolder(tmp_path, REQUEST | {"limit": 5}, overwrite=True)
    shutil.rmtree(tmp_path / "mine")
    with OutputFolder(tmp_path, REQUEST | {"limit": 5}, overwrite=True):
        pass
    assert set(tree(tmp_path)) == {"run.json", RECORD}


@pytest.mark.parametrize("place", [".", "below"])
def test_the_working_directory_is_never_emptied(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path)
    monkeypatch.setenv("HOME", "/")
    (tmp_path / "parts" / place).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "parts" / place if place == "below" else tmp_path)
    with pytest.raises(UserError, match=r"working directory|below"):
        OutputFolder(tmp_path, REQUEST, overwrite=True)
    assert (tmp_path / "parts" / "a-00000.parquet").exists()


def test_a_home_is_never_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="your home"):
        OutputFolder(tmp_path, REQUEST, overwrite=True)
    assert (tmp_path / "parts" / "a-00000.parquet").exists()


def test_nothing_is_written_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.csv").write_text("mine")
    with OutputFolder(tmp_path / "out", REQUEST) as folder:
        (folder.path / "figures").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UserError, match="link"):
            write_text(folder.path / "figures" / "a.svg", "")
        (folder.path / "table.csv").symlink_to(tmp_path / "mine.csv")
        with pytest.raises(UserError, match="not written by moeprobe"):
            write_text(folder.path / "table.csv", "")
    assert not any((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_a_folder_that_is_removed_during_a_run_is_one_sentence(tmp_path: Path) -> None:
    with OutputFolder(tmp_path / "out", REQUEST) as folder:
        shutil.rmtree(folder.path)
        with pytest.raises(UserError, match="was removed"):
            folder.write(result(comparison=False))
    assert not (tmp_path / "out").exists()


def test_a_file_that_vanishes_during_a_run_is_one_sentence(tmp_path: Path) -> None:
    with OutputFolder(tmp_path, REQUEST) as folder:
        folder.write(result(comparison=False))
        (tmp_path / "table.csv").unlink()
        with pytest.raises(UserError, match=r"table\.csv vanished"):
            folder.finish({})
    assert not (tmp_path / "table.json").exists()


def test_what_killed_writers_leave_goes_with_the_next_run(tmp_path: Path) -> None:
    begin(tmp_path)
    litter = [".table.csv.abc12_xy.tmp", "parts/.a-00000.parquet.abcdefgh.tmp", ".run.json.abcdefgh.tmp"]
    mine = [".mine.abcdefgh.tmp", "parts/.a.tmp", "table.csv.tmp"]
    with OutputFolder(tmp_path, REQUEST) as folder:
        write_text(folder.path / "table.csv", "")
    for name in (*litter, *mine):
        (tmp_path / name).write_text("half")
    with OutputFolder(tmp_path, REQUEST):
        assert not any((tmp_path / name).exists() for name in litter)
        assert all((tmp_path / name).exists() for name in mine)


def test_a_file_or_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", Path("/dev/null")):
        with pytest.raises(UserError, match="is a file"):
            OutputFolder(path, REQUEST)
    with pytest.raises(UserError, match="Cannot write"):
        OutputFolder(tmp_path / "file" / "below", REQUEST)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with OutputFolder(tmp_path / "out", REQUEST):
        assert (tmp_path / "out" / "run.json").exists()


def test_provenance_says_what_computed() -> None:
    found = provenance()
    assert {"moeprobe", "python", "torch", "numpy", "timm"} <= set(found["versions"])
    assert all(re.match(r"\d", version) for version in found["versions"].values())
    assert found["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["git_commit"])


def test_two_may_begin_the_same_folder_at_once_only_where_they_share_it(tmp_path: Path) -> None:
    with OutputFolder(tmp_path, REQUEST, shared=True), OutputFolder(tmp_path, REQUEST, shared=True):
        with pytest.raises(UserError, match="in use"):
            OutputFolder(tmp_path, REQUEST)
        with pytest.raises(UserError, match="in use"):
            OutputFolder(tmp_path, REQUEST, shared=True, overwrite=True)
    with OutputFolder(tmp_path, REQUEST) as folder:
        # A run of something else neither: --overwrite is no advice while the folder is being written.
        part = folder.parts / "a-00000.parquet"
        write_text(part, "part")
        for request in (REQUEST, {"kind": "confidence"}):
            with pytest.raises(UserError, match="in use"):
                OutputFolder(tmp_path, request)
        remove(part)
    assert set(tree(tmp_path)) == {"run.json", RECORD}


def test_a_folder_whose_request_cannot_be_looked_at_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise UserError("Cannot read out/run.json: Interrupted system call.")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "check_folder", lambda *_, **__: None)
        patch.setattr(runs.files, "is_there", failing)
        with pytest.raises(UserError, match="Interrupted"):
            OutputFolder(tmp_path / "out", {"kind": "sweep"})
    assert not GUARDS and not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_listed_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise UserError("Cannot read out: Input/output error.")

    folder = OutputFolder(tmp_path / "out", {"kind": "sweep"})
    with monkeypatch.context() as patch:
        patch.setattr(runs, "scan", failing)
        folder.close(failed=True)
    with OutputFolder(tmp_path / "out", {"kind": "sweep"}) as folder:
        folder.finish({})
