"""What the operating system reports ends in one sentence, wherever it is raised, and a bug does not."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from safetensors import SafetensorError

import moeprobe
from moeprobe.cli.front.environment import system_error
from moeprobe.probes.engine.run import Work
from tests.commands import Trained, refused

# What a program does wrong by itself.
BUGS = (errno.EBADF, errno.EFAULT)
# Of a pipe that nobody reads nothing is said, and of a full disk something else.
NOT_THESE = {*BUGS, errno.EPIPE, errno.ESHUTDOWN, errno.ENOSPC, errno.EDQUOT}
NUMBERS = sorted(errno.errorcode.keys() - NOT_THESE)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_an_error_with_a_number_names_the_file(number: int) -> None:
    said = system_error(OSError(number, os.strerror(number), "a/b.json"))
    assert said is not None and said.sentence == f"Cannot read or write a/b.json: {os.strerror(number)}."
    said = system_error(OSError(number, os.strerror(number)))
    assert said is not None and said.sentence == f"Cannot read or write a file: {os.strerror(number)}."


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to mmap 4096 bytes from file </x.safetensors>: Cannot allocate memory (12)"),
        OSError("Error reading bytes from file. Detail: [errno 5] Input/output error"),
        pa.ArrowInvalid("Error while reading: Stale file handle"),
        SafetensorError("Error while reading: I/O error: Stale file handle (os error 116)"),
    ],
)
def test_what_other_libraries_say_without_a_number(error: Exception) -> None:
    said = system_error(error)
    assert said is not None and said.sentence == f"Reading or writing a file failed: {error}."


def test_a_bug_stays_one() -> None:
    assert system_error(OSError("no number")) is None
    assert system_error(KeyError("file")) is None
    for bug in (ValueError, TypeError, KeyError, NotImplementedError):
        assert system_error(bug("Input/output error")) is None
    assert system_error(RuntimeError("Symlink loop")) is None
    for number in BUGS:
        assert system_error(OSError(number, os.strerror(number), "a")) is None


def test_a_link_to_itself(tmp_path: Path) -> None:
    """As every version of Python says it: up to 3.12, ``Path.resolve`` raises a RuntimeError."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    said = f"Cannot read or write {loop}: Too many levels of symbolic links."
    with pytest.raises((OSError, RuntimeError)) as raised:
        loop.resolve(strict=True)
    assert f"{system_error(raised.value)}" == said


def test_a_missing_file_of_the_package_is_a_bug(tmp_path: Path) -> None:
    def missing(path: Path) -> OSError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    assert system_error(missing(Path(moeprobe.__file__).parent / "templates" / "page.html")) is None
    assert system_error(missing(tmp_path / "page.html")) is not None


def test_the_command_line_says_it(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "weights")

    monkeypatch.setattr(Work, "execute", fail)
    said = refused("confidence", trained["prc"], "--limit", "20")
    assert "Cannot read or write weights: Stale file handle." in said
