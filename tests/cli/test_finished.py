"""A command whose run is finished: its result is printed, nothing is computed, and it is no error."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from moeprobe.results.folder import OutputFolder
from moeprobe.runtime.folders import RunFolder
from tests.commands import Trained, refused, run


def times_in(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command", ["noise-sweep --sigmas 0,0.1", "match-ratio", "eval", "discontinuity", "routes"]
)
def test_a_finished_probe_prints_its_table(trained: Trained, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    arguments = (*command.split(), *trained.values(), "--limit", 24, "--out", out)
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


def test_a_finished_run_without_a_table_names_its_files(trained: Trained, tmp_path: Path) -> None:
    overlay = ("overlay", trained["prc"], "--count", 1, "--out", tmp_path / "overlay")
    correspond = ("correspond", trained["prc"], "--count", 1, "--out", tmp_path / "correspond")
    shard = ("confidence", trained["prc"], "--limit", 40, "--shard", "1/2", "--out", tmp_path / "shard")
    for arguments in (overlay, correspond, shard):
        assert run(*arguments).exit_code == 0
        again = run(*arguments)
        assert again.exit_code == 0 and "is finished; --overwrite repeats it." in again.stderr
        assert f"Written to {arguments[-1]}/" in again.stdout
        assert "sidecar" in json.loads(run(*arguments, "--json").stdout)


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
