"""A folder belongs to one process at a time, and what a killed one leaves belongs to nobody."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.runtime.files import atomic_file, remove, write_text
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.locks import Lock
from moeprobe.runtime.records import LOCK, NEW_RECORD, RECORD, Family, scan

FAMILY = Family("probe", patterns=lambda path: ("run.json",) if (path / "run.json").is_file() else ())
HOLD = """
import os, sys, time
from pathlib import Path
from moeprobe.runtime.files import atomic_file
from moeprobe.runtime.folders import RunFolder
from tests.runtime.test_folders import FAMILY
with RunFolder(Path(sys.argv[1]), FAMILY) as folder, atomic_file(folder.path / "table.csv") as temporary:
    temporary.write_text("half")
    # The forked one says so, for only when it has run at all is it without the lock.
    if "fork" in sys.argv and os.fork() > 0:
        time.sleep(600)
    print("holding", flush=True)
    time.sleep(600)
"""


def hold(path: Path, *how: str) -> subprocess.Popen[str]:
    """Hold a folder, in the middle of writing a table, in a process of its own."""
    command = [sys.executable, "-c", HOLD, str(path), *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "holding\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    process = hold(tmp_path / "out")
    try:
        with pytest.raises(
            UserError, match=rf"out is in use by process {process.pid} on .*, since \d.* UTC: "
        ):
            RunFolder(tmp_path / "out", FAMILY)
    finally:
        end(process)


@pytest.mark.parametrize(
    "content", ['{"pid": 1e999, "host": "", "since": "", "command": ""}', "[]", "", "\xff"]
)
def test_a_lock_that_does_not_say_who_holds_it(tmp_path: Path, content: str) -> None:
    with Lock(tmp_path / LOCK):
        (tmp_path / LOCK).write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match="is in use by another process"):
            Lock(tmp_path / LOCK)


@pytest.mark.parametrize("how", [(), ("fork",)])
def test_a_killed_process_blocks_nobody_and_its_temporary_files_go(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    """Even where a process that it forked, a data loader's worker say, lives on."""
    process = hold(tmp_path, *how)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = {path.name for path in tmp_path.iterdir()}
    assert {LOCK, RECORD} < left and len(left) == 3
    try:
        with RunFolder(tmp_path, FAMILY) as folder:
            assert {path.name for path in tmp_path.iterdir()} == {LOCK, RECORD}
            write_text(folder.path / "table.csv", "whole")
    finally:
        end(process)
    assert {path.name for path in tmp_path.iterdir()} == {RECORD, "table.csv"}


def test_a_run_inside_that_another_process_is_at_is_not_removed(tmp_path: Path) -> None:
    """Neither its files nor what it is writing, by a run around it that is begun or overwritten meanwhile."""
    with RunFolder(tmp_path, FAMILY) as outer:
        write_text(outer.path / "run.json", "{}")
        with RunFolder(tmp_path / "inside", FAMILY) as inner:
            write_text(inner.path / "run.json", "{}")
    process = hold(tmp_path / "inside")
    try:
        there = {path.name for path in (tmp_path / "inside").iterdir()}
        with RunFolder(tmp_path, FAMILY) as outer:
            with pytest.raises(UserError, match=rf"inside is in use by process {process.pid} on "):
                outer.clear()
            assert (tmp_path / "run.json").exists()
            assert {path.name for path in (tmp_path / "inside").iterdir()} == there and len(there) == 4
    finally:
        end(process)
    with RunFolder(tmp_path, FAMILY) as outer:
        outer.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_stays_where_it_was_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with RunFolder(Path("out"), FAMILY) as folder, atomic_file(Path("beside.csv")) as temporary:
        with pytest.raises(UserError, match=r"^out is in use"):
            RunFolder(Path("out"), FAMILY)
        temporary.write_text("")
        monkeypatch.chdir(tmp_path / "elsewhere")
        write_text(folder.path / "run.json", "{}")
        write_text(folder.path / "a.csv", "")
        folder.check()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "elsewhere", "beside.csv"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {RECORD, "run.json", "a.csv"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_record_that_cannot_be_opened_again_closes_nobody_elses_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if Path(path).name == RECORD and flags & os.O_APPEND and not flags & os.O_CREAT:
            raise OSError("no more files")
        return opened(path, flags, *more, **named)

    folder = RunFolder(tmp_path, FAMILY)
    write_text(tmp_path / "b.csv", "")
    write_text(tmp_path / "a.csv", "")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        folder.clear()
    with (tmp_path / "mine").open("w") as mine:  # would get the number of a file that was closed
        folder.close()
        mine.write("whole")
    assert (tmp_path / "mine").read_text() == "whole"


def test_a_lock_leaves_no_file_and_lets_one_in_at_a_time(tmp_path: Path) -> None:
    """Its file is removed and made again under those who wait; never do two hold it."""
    inside, most = [0], [0]

    def enter() -> None:
        for _ in range(40):
            with Lock(tmp_path / "lock", wait=True):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_reads_is_not_theirs(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="lock"):
        Lock(tmp_path / "lock")
    assert not (tmp_path / "mine").exists()


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "b", FAMILY):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line", ['"../precious"', '"/etc/passwd"', '"a/../../precious"', "[]", "{", "[" * 10_000, '""']
)
def test_a_record_names_nothing_outside_its_folder(tmp_path: Path, line: str) -> None:
    (tmp_path / "precious").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / RECORD).write_text(f'{{"moeprobe": "files", "of": "probe"}}\n{line}\n"run.json"\n"half')
    (out / "run.json").write_text("{}")
    assert scan(out, FAMILY).own == ("run.json",)
    with RunFolder(out, FAMILY) as folder:
        folder.clear()
        write_text(out / "table.csv", "")
    assert {path.name for path in out.iterdir()} == {RECORD, "table.csv"}
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_record_of_another_kind_is_not_written_over(tmp_path: Path) -> None:
    with RunFolder(tmp_path, FAMILY) as folder:
        write_text(folder.path / "run.json", "{}")
    with pytest.raises(UserError, match="is the folder of a probe, not of a training"):
        RunFolder(tmp_path, Family("training", lambda _: ()))


def test_a_file_that_is_recorded_but_is_a_folder_now_is_not_removed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, FAMILY) as folder:
        write_text(folder.path / "table.csv", "")
        write_text(folder.path / "run.json", "")
    (tmp_path / "table.csv").unlink()
    (tmp_path / "table.csv").mkdir()
    (tmp_path / "table.csv" / "mine").write_text("mine")
    with RunFolder(tmp_path, FAMILY) as folder, pytest.raises(UserError, match=r"did not write: table\.csv/"):
        folder.clear()
    assert (tmp_path / "table.csv" / "mine").exists()


def test_an_empty_folder_in_the_place_of_a_file_is_found_before_anything_is_removed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, FAMILY) as folder:
        write_text(folder.path / "table.csv", "")
        write_text(folder.path / "run.json", "{}")
    (tmp_path / "table.csv").unlink()
    (tmp_path / "table.csv").mkdir()
    with RunFolder(tmp_path, FAMILY) as folder, pytest.raises(UserError, match=r"did not write: table\.csv/"):
        folder.clear()
    assert (tmp_path / "run.json").exists()


def test_a_file_that_is_not_on_record_is_not_removed_by_name(tmp_path: Path) -> None:
    with RunFolder(tmp_path, FAMILY) as folder:
        write_text(folder.path / "run.json", "{}")
        (tmp_path / "table.json").write_text("mine")
        with pytest.raises(UserError, match=r"table\.json was not written by moeprobe"):
            remove(tmp_path / "table.json")
        remove(tmp_path / "run.json")
        remove(tmp_path / "never there")
    assert (tmp_path / "table.json").read_text() == "mine"


def test_the_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with RunFolder(tmp_path / "out", FAMILY) as folder:
        write_text(folder.path / "run.json", "{}")
        write_text(folder.path / "a.csv", "")
        (tmp_path / "out" / NEW_RECORD).symlink_to(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "out" / RECORD).is_symlink()
    assert scan(tmp_path / "out", FAMILY).own == ("a.csv", "run.json")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_looked_at_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A server that does not answer at the end of a run costs no result, and is said."""
    result = tmp_path / "run" / "table.csv"
    own = RunFolder(tmp_path / "run", FAMILY)
    write_text(result, "a\n")
    with monkeypatch.context() as failing:
        for name in ("stat", "lstat"):
            failing.setattr(os, name, _failing(getattr(os, name), result, number))
        with pytest.raises(UserError, match=r"Cannot read .*table\.csv: "):
            own.check()
        own.close()
    assert result.read_text(encoding="utf-8") == "a\n"
    assert scan(tmp_path / "run", FAMILY).own == ("table.csv",)


def _failing(function: Callable[..., Any], path: Path, number: int) -> Callable[..., Any]:
    def fail(given: Any, *arguments: Any, **keywords: Any) -> Any:
        if str(given) == str(path):
            raise OSError(number, os.strerror(number), str(given))
        return function(given, *arguments, **keywords)

    return fail


def test_a_record_that_cannot_be_put_in_order_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / NEW_RECORD
    with monkeypatch.context() as failing, RunFolder(tmp_path, FAMILY):
        write_text(tmp_path / "b.csv", "")
        write_text(tmp_path / "a.csv", "")
        failing.setattr(Path, "replace", _failing(Path.replace, new, errno.ESTALE))
    assert not new.exists()
    # One that is left of an earlier version goes with the next run, though nothing is to be put in order.
    RunFolder(tmp_path, FAMILY).close()
    new.touch()
    RunFolder(tmp_path, FAMILY).close()
    assert not new.exists() and scan(tmp_path, FAMILY).own == ("a.csv", "b.csv")


def test_a_record_that_cannot_be_begun_leaves_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version wrote this folder; with an empty record its files would be nobody's."""
    (tmp_path / "run.json").write_text("{}")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UserError, match="No space left"):
            RunFolder(tmp_path, FAMILY)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json"}
    assert scan(tmp_path, FAMILY).own == ("run.json",)


def test_a_record_that_is_put_in_order_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it took the place of the earlier one, nothing may fail: what is written next would not be on it."""
    replace, opened = Path.replace, os.open
    with RunFolder(tmp_path, FAMILY) as folder:
        write_text(tmp_path / "run.json", "{}")
        write_text(tmp_path / "a.csv", "")

        def failing(path: Any, *arguments: Any, **keywords: Any) -> int:
            if str(path).endswith(RECORD):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return opened(path, *arguments, **keywords)

        def replaced(path: Path, target: Path) -> Path:
            monkeypatch.setattr(os, "open", failing)
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", replaced)
        folder.discard(["a.csv"])
        monkeypatch.undo()
        write_text(tmp_path / "b.csv", "")
        folder.check()
    assert scan(tmp_path, FAMILY).own == ("b.csv", "run.json")


def test_a_run_inside_that_cannot_be_locked_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with RunFolder(tmp_path / "out", FAMILY):
        monkeypatch.setattr(fcntl, "flock", failing)
        with pytest.raises(UserError, match=r"Cannot lock .*Input/output error"):
            RunFolder(tmp_path / "out" / "inside", FAMILY)
        monkeypatch.undo()
    assert not (tmp_path / "out").exists()
