"""No room on the disk, or none for what loader processes share: a sentence, and nothing half-written."""

import errno
import multiprocessing
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.training import tasks
from moeprobe.runtime.processes import lost_workers
from tests.commands import Trained, refused
from tests.models.training.tiny import finish, results, trainer


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses larger files, as a full disk does: in whatever language they are written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_weights_that_find_no_room_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.write_tensors(path, {"x": torch.zeros(10)}, {})
    before = path.read_bytes()
    words = rf"Cannot write {path}: {os.strerror(errno.EFBIG)}\."
    with largest_file(2000), pytest.raises(UserError, match=words):
        checkpoint.write_tensors(path, {"x": torch.zeros(1000)}, {})
    assert [one.name for one in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


def test_a_run_that_found_no_room_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    trainer(whole).run()
    one, validate = trainer(cut), tasks.Task.validate
    size = (whole / "last.safetensors").stat().st_size // 2

    def validated(*arguments: Any, **named: Any) -> dict[str, float]:
        if one.step == 8:
            limit = largest_file(size)
            limit.__enter__()
            limits.append(limit)
        return validate(*arguments, **named)

    limits: list[Any] = []
    monkeypatch.setattr(tasks.Task, "validate", validated)
    try:
        with pytest.raises(UserError, match="Cannot write"):
            one.run()
    finally:
        for limit in limits:
            limit.__exit__(None, None, None)
    monkeypatch.undo()
    assert limits and not list(cut.glob(".*.tmp"))
    finish(cut)
    assert results(cut) == results(whole)


def test_without_shared_memory_workers_are_refused(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(multiprocessing, "Lock", read_only)
    said = refused("eval", trained["prc"], "--limit", 20, "--workers", 1)
    assert "/dev/shm" in said and "Read-only file system" in said
    assert "--workers 0" in said and "data.workers=0" in said


@pytest.mark.parametrize(
    "text",
    [
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback ...\n"
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)\n",
        "unable to open shared memory object </torch_1_2_0> in read-write mode: Permission denied (13)",
        "DataLoader worker (pid 21) is killed by signal: Bus error. It is possible that dataloader's workers ...",
        "DataLoader worker (pid(s) 31) exited unexpectedly",
    ],
)
def test_what_loader_processes_die_of_is_said(
    text: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(DataLoader, "__iter__", die)
    said = refused("eval", trained["prc"], "--limit", 20)
    assert "--workers 0" in said and "Traceback" not in said and len(said) < 500


def test_another_error_of_a_loader_process_is_not_taken_for_it() -> None:
    assert (
        lost_workers(RuntimeError("Caught RuntimeError in DataLoader worker process 0. shape mismatch"))
        is None
    )
