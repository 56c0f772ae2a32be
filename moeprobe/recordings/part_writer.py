"""Write a trace into a folder of parts, each of about so many rows; no input is in two of them."""

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from moeprobe.errors import UserError, option
from moeprobe.recordings.format import TraceWriter, writing
from moeprobe.runtime.files import absolute, display_path


class PartsWriter:
    """An open trace in parts, with the methods of a ``TraceWriter``.

    A part ends with the first input after which it has ``rows_per_file`` rows. What is known of the whole trace only
    at its end, such as the inputs left out, stands in the last part.

    Args:
        folder: which is there, and empty.
        rows_per_file: least number of rows of each part but the last.
        describe_part: returns the metadata of a part that is full; its ``clusters`` may name other inputs too.
    """

    def __init__(
        self, folder: Path, rows_per_file: int, describe_part: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._folder, self._rows_per_file, self._describe_part = folder, rows_per_file, describe_part
        self._stack = contextlib.ExitStack()
        self._file: TraceWriter | None = None
        self._number = self._rows = 0
        # Inputs of this part and of those before it, and the last one that was written.
        self._inputs: set[str] = set()
        self._closed: set[str] = set()
        self._last: str | None = None

    def write(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Write rows, all rows of an input one after the other.

        Raises:
            UserError: rows of an input come after its part is full, or a file cannot be written.
        """
        for batch in rows:
            encoded = batch["id"].dictionary_encode()
            names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
            starts = np.flatnonzero(np.diff(codes)) + 1
            if names[codes[0]] != self._last:
                starts = np.concatenate([[0], starts])
            start = 0
            while start < len(codes):
                if self._rows >= self._rows_per_file and start in starts:
                    self._end_part(self._describe_part())
                # Up to the first input with which the part is full.
                ends = starts[(starts > start) & (self._rows + starts - start >= self._rows_per_file)]
                end = int(ends[0]) if len(ends) else len(codes)
                self._write_piece(batch.slice(start, end - start), {names[code] for code in codes[start:end]})
                start = end
            self._last = names[codes[-1]]

    def _write_piece(self, batch: pa.RecordBatch, names: set[str]) -> None:
        if apart := names & self._closed:
            raise UserError(
                f"The rows of {min(apart)} do not follow one another, so they cannot be in one part; leave "
                f"{option('rows_per_file')} out."
            )
        if self._file is None:
            path = self._folder / f"part-{self._number:05d}.parquet"
            self._file = self._stack.enter_context(writing(path, threaded=True))
        self._file.write([batch])
        self._rows += batch.num_rows
        self._inputs |= names

    def _end_part(self, info: Mapping[str, Any]) -> None:
        assert self._file is not None
        clusters = {name: first for name, first in info.get("clusters", {}).items() if name in self._inputs}
        without = {key: value for key, value in info.items() if key != "clusters"}
        self._file.close(without | ({"clusters": clusters} if clusters else {}))
        self._stack.close()
        self._closed |= self._inputs
        self._file, self._inputs, self._rows = None, set(), 0
        self._number += 1

    def close(self, info: Mapping[str, Any]) -> None:
        """Write the metadata of the last part, with the facts about the whole trace."""
        self._end_part(info)

    def abandon(self, error: BaseException) -> None:
        """Leave the open part as an error does."""
        self._stack.__exit__(type(error), error, error.__traceback__)


@contextlib.contextmanager
def writing_parts(
    folder: Path, rows_per_file: int, describe_part: Callable[[], Mapping[str, Any]]
) -> Iterator[PartsWriter]:
    """Yield a writer of a folder of parts, which appears when the block succeeds, instead of an earlier one.

    Args:
        folder: of the parts.
        rows_per_file: see ``PartsWriter``.
        describe_part: see ``PartsWriter``.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = absolute(folder)
    # Beside it, since only within a file system a folder is renamed at once.
    temporary, earlier = (folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp") for _ in range(2))
    try:
        temporary.mkdir(parents=True)
        writer = PartsWriter(temporary, rows_per_file, describe_part)
        try:
            yield writer
        except BaseException as error:
            writer.abandon(error)
            raise
        try:
            if folder.exists():
                folder.rename(earlier)
            temporary.rename(folder)
        except BaseException:
            # Between the two, what was there is at no place that anyone looks at.
            if earlier.exists() and not folder.exists():
                earlier.rename(folder)
            raise
    except OSError as error:
        raise UserError(f"Cannot write {display_path(folder)}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        # Nothing is deleted that has no successor.
        if folder.exists():
            shutil.rmtree(earlier, ignore_errors=True)
