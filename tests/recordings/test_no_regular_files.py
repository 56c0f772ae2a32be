"""FIFOs in the place of files of other programs are refused, not waited for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.msgpack import File
from moeprobe.models.checkpoints.swin_moe_files import read_ranks
from moeprobe.models.checkpoints.vmoe_files import read_orbax
from moeprobe.recordings.import_log import Log
from moeprobe.recordings.reading import TraceFile
from moeprobe.studies.report.reading import read_runs
from tests.studies.report.making import write_run


@pytest.mark.parametrize(
    "read", [File, TraceFile, lambda path: list(Log(path).batches())], ids=["msgpack", "trace", "log"]
)
def test_a_fifo_is_read_by_nobody(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(UserError, match="file: it is not a regular file"):
        read(tmp_path / "file")


def test_a_rank_that_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "swin.rank0")
    with pytest.raises(UserError, match=r"swin\.rank0: it is not a regular file"):
        read_ranks(tmp_path / "swin")


def test_a_fifo_in_a_store(tmp_path: Path) -> None:
    (tmp_path / "params.cls").mkdir()
    (tmp_path / "params.cls/.zarray").write_text("{}")
    os.mkfifo(tmp_path / "params.cls/0.0")
    with pytest.raises(UserError, match=r"0\.0: it is not a regular file"):
        read_orbax(tmp_path)


@pytest.mark.parametrize("file", ["table.csv", "figures/match-ratio.png", "more.csv"])
def test_a_fifo_in_a_run(tmp_path: Path, file: str) -> None:
    run = write_run(tmp_path / "run")
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)
    with pytest.raises(UserError, match=r"it is not a regular file"):
        read_runs([run])
