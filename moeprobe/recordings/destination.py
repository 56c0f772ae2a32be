"""Where an import writes its trace, and what the trace is called."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, already_finished, option
from moeprobe.recordings.format import TraceWriter, writing
from moeprobe.recordings.part_writer import PartsWriter, writing_parts
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.trace_paths import find_parts
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import Scratch, has_same_bytes, is_folder, is_there
from moeprobe.runtime.object_stores import check_local


def check_destination(path: Path, *, overwrite: bool, rows_per_file: int | None = None) -> None:
    """Raise ``UserError`` unless ``path`` is free or holds a trace, in one file or in parts."""
    if rows_per_file is not None and rows_per_file < 1:
        raise UserError(f"{option('rows_per_file')} takes a positive number; got {rows_per_file}.")
    check_local(path)
    if rows_per_file is None and path.suffix != ".parquet":
        raise UserError(
            f"A trace is one file; end its name in .parquet, e.g. {path}.parquet, or write a folder of parts with "
            f"{option('rows_per_file', 100_000)}."
        )
    if rows_per_file is not None and path.suffix == ".parquet":
        raise UserError(
            f"Parts are written into a folder; leave .parquet out, e.g. {path.with_suffix('')}, or leave "
            f"{option('rows_per_file')} out."
        )
    if is_there(path):
        try:
            TraceFile(path)
            # Nothing else is in the folder that would be replaced.
            if rows_per_file is not None and not is_folder(path):
                raise UserError(f"{path} is one file")
            if rows_per_file is not None and (foreign := set(path.iterdir()) - set(find_parts(path))):
                raise UserError(f"{min(foreign)} is no part of a trace.")
        except UserError as error:
            if not overwrite:
                raise _another(path) from None
            raise UserError(
                f"{option('overwrite')} replaces traces alone; move {path} away or choose another name ({error})."
            ) from None


@contextlib.contextmanager
def new_trace(
    path: Path, *, overwrite: bool, rows_per_file: int | None, describe_part: Callable[[], Mapping[str, Any]]
) -> Iterator[TraceWriter | PartsWriter]:
    """Yield a writer of the trace at ``path``.

    Without ``overwrite`` a trace that is there stays. The new one is then written elsewhere, to be compared with it.

    Args:
        path: of the file, or of the folder of parts.
        overwrite: whether to replace a trace that is there.
        rows_per_file: rows of a part; None = there is one file.
        describe_part: see ``PartsWriter``.

    Raises:
        UserError: another trace is there.
    """
    is_new = overwrite or not is_there(path)
    scratch = Scratch()
    target = path if is_new else scratch.path / path.name
    writer = (
        writing(target, threaded=True)
        if rows_per_file is None
        else writing_parts(target, rows_per_file, describe_part)
    )
    with writer as file:
        yield file
    if not is_new:
        if not _have_same_bytes(target, path):
            raise _another(path)
        warnings.warn(already_finished(path), stacklevel=4)


def num_bytes(path: Path) -> int:
    """Return the bytes of a trace, in all of its parts."""
    return sum(part.stat().st_size for part in find_parts(path))


def _have_same_bytes(first: Path, second: Path) -> bool:
    parts = find_parts(first), find_parts(second)
    return len(parts[0]) == len(parts[1]) and all(map(has_same_bytes, *parts))


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
