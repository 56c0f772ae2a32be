"""Where an import writes its trace, and what the trace is called."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, already_finished, option
from moeprobe.recordings.reading import TraceFile
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import Scratch, has_same_bytes, is_there


def check_destination(path: Path, *, overwrite: bool) -> None:
    """Raise ``UserError`` unless ``path`` is free or holds a trace."""
    if path.suffix != ".parquet":
        raise UserError(f"A trace is one file; end its name in .parquet, e.g. {path}.parquet.")
    if is_there(path):
        try:
            TraceFile(path)
        except UserError as error:
            if not overwrite:
                raise _another(path) from None
            raise UserError(
                f"{option('overwrite')} replaces traces alone; move {path} away or choose another name ({error})."
            ) from None


@contextlib.contextmanager
def new_trace(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield where to write a trace that belongs to ``path``.

    Without ``overwrite`` a trace that is there stays. The new one is then written elsewhere, to be compared with it.

    Raises:
        UserError: another trace is there.
    """
    if overwrite or not is_there(path):
        yield path
        return
    scratch = Scratch()
    yield scratch.path / path.name
    if not has_same_bytes(scratch.path / path.name, path):
        raise _another(path)
    warnings.warn(already_finished(path), stacklevel=4)


def _another(path: Path) -> UserError:
    return UserError(f"{path} exists; add {option('overwrite', True)} to replace it.")


def named_checkpoint(name: str, *, data: str) -> dict[str, Any]:
    """Return what a trace says of a model of which only the name is known.

    Raises:
        UserError: it, or what the requests are called, cannot be written.
    """
    for value in (name, data):
        if not is_unicode(value):
            raise UserError(f"A trace calls things by names in UTF-8; got {value!r}.")
    return {"name": name, "sha256": None}
