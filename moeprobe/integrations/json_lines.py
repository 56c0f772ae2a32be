"""A file of records: a line of JSON each, whole whatever ended the line before."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from moeprobe.errors import UserError
from moeprobe.integrations.arguments import check_class
from moeprobe.integrations.sinks import RoutingRecord, Sink, cannot_write
from moeprobe.runtime.files import expand

_BLOCK = 1 << 16
# What each line begins with.
_START = b'{"step": '


@check_class
class JsonLines(Sink):
    """A file with a line per record: all that was measured, with intervals and layer by layer.

    Lines of earlier runs stay. ``run`` tells them apart: it is 1 in a new file, and grows by one with each run.

    Args:
        path: a file, made with its folder.

    Raises:
        UserError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self._run = expand(path), 1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()
            # A file of something else may end without a newline, and its end would be cut off.
            is_foreign = self.path.is_file() and not _begins_with_record(self.path)
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            raise cannot_write(self.path, error) from error
        if is_foreign:
            raise UserError(f"{self.path} holds no records of a monitor; name another file.")

    def open(self) -> None:
        """Begin a run."""
        _mend_end(self.path)
        self._run = 1 + _last_run(self.path)

    def write(self, record: RoutingRecord) -> None:
        """Add a line, which is complete when this returns."""
        line = {
            "step": record.step,
            "run": self._run,
            **record.values,
            "intervals": record.intervals,
            "layers": record.layers,
            "inputs": record.inputs,
            "seconds": record.seconds,
        }
        text = json.dumps(_plain(line), allow_nan=False) + "\n"
        _mend_end(self.path)
        try:
            with self.path.open("ab") as file:
                file.write(text.encode())
        except OSError:
            with suppress(OSError):  # else the next record mends it
                _mend_end(self.path)
            raise


def _begins_with_record(path: Path) -> bool:
    """Whether a file is empty or begins with a record, of which a killed process may have written a few bytes."""
    with path.open("rb") as file:
        start = file.read(len(_START))
    # Other programs that copied the lines may write no spaces.
    return _START.startswith(start) or start.replace(b" ", b"").startswith(_START.rstrip())


def _last_run(path: Path) -> int:
    """Return the number of the run that wrote a file's last line; 0 where there is no line."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        end = _end_of_lines(file, before=file.seek(0, os.SEEK_END))
        start = _end_of_lines(file, before=end - 1)
        file.seek(start)
        line = file.read(end - start)
    if not line:
        return 0
    run = (_object_or_none(line) or {}).get("run")
    return run if isinstance(run, int) else 1  # a line of another program, or edited


def _mend_end(path: Path) -> None:
    """Let a file end in a newline: half a line is cut off, as a full disk or a killed process leaves it."""
    if not path.is_file():  # a pipe, or a file that was removed meanwhile
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = _end_of_lines(file, before=size)
        if end < size:
            file.seek(end)
            if _object_or_none(file.read()) is None:
                file.truncate(end)
            else:
                file.write(b"\n")


def _object_or_none(line: bytes) -> dict[str, Any] | None:
    """Return the object that a line holds; None where it holds no whole one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _end_of_lines(file: BinaryIO, *, before: int) -> int:
    """Return where the last line that ends before some byte ends, its newline with it; 0 if there is none."""
    end = before
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; there is no NaN in JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
