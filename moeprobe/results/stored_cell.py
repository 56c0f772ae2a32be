"""The sums per image of one cell: chunks of it in memory or in files, read whole or block by block."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.results.own_files import reading
from moeprobe.results.sums import CONSTANT, Cell
from moeprobe.results.tables import CELL_COLUMNS
from moeprobe.runtime.files import Version
from moeprobe.runtime.parquet import open_parquet

Arrays = dict[str, NDArray[np.generic]]

# Images of a block that statistics are computed from, and bytes of their columns from which on a block is large enough.
BLOCK_IMAGES, _BLOCK_BYTES = 1024, 2**21
# Images that are decoded at a time.
_BATCH_IMAGES = 256
# What says of which cell a row is.
KEYS = ("checkpoint", *CELL_COLUMNS)
# Sums of how often experts are chosen.
_LOADS = {"load", "balance"}
# Ends the name of a column that says: a load is of first choices alone.
_OF_FIRST = "_of_first"


class DamagedSumsError(UserError, ValueError):
    """Sums per image contradict one another, which never happens within a run."""


class SumsChunk(Protocol):
    """Some images of a cell."""

    @property
    def num_rows(self) -> int:
        """How many."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of their file or table."""

    def table(self, *, keys: bool = True) -> pa.Table:
        """Return them with the columns that they have; without ``keys``, those that say of which cell they are."""

    def names(self) -> list[str]:
        """Return their names."""


@dataclass(frozen=True)
class Rows:
    """Rows of a table in memory."""

    of: pa.Table
    rows: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self.of.schema

    def table(self, *, keys: bool = True) -> pa.Table:
        """Return them with all columns."""
        if len(self.rows) and (np.diff(self.rows) == 1).all():
            return self.of.slice(self.rows[0], len(self.rows))
        return self.of.take(pa.array(self.rows))

    def names(self) -> list[str]:
        """Return their names."""
        return self.of["image_id"].take(pa.array(self.rows)).to_pylist()


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, or some rows of one that cells share.

    Attributes:
        path: the file.
        version: of the file, when its row groups were indexed.
        number: of the row group.
        rows: the cell's.
        size: rows of the row group.
        schema: columns of the file.
    """

    path: Path
    version: Version
    number: int
    rows: range
    size: int
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self.rows)

    def table(self, *, keys: bool = True) -> pa.Table:
        """Return them with the columns that they have."""
        if self.num_rows < self.size:
            return self._shared_rows(keys=keys)
        row_group = open_parquet(self.path, self.version).metadata.row_group(self.number)
        columns = (row_group.column(index) for index in range(row_group.num_columns))
        # Columns of other cells are empty here, and not read.
        left_out = {column.path_in_schema.split(".")[0] for column in columns if _is_empty(column)}
        left_out = left_out - set(KEYS) if keys else left_out | set(KEYS)
        return self._read([name for name in self.schema.names if name not in left_out])

    def names(self) -> list[str]:
        """Return their names."""
        table = self._read(["image_id"]) if self.num_rows == self.size else self._shared_rows(keys=False)
        return table["image_id"].to_pylist()

    def _shared_rows(self, *, keys: bool) -> pa.Table:
        rows = _whole_group(self.path, self.version, self.number).slice(self.rows.start, self.num_rows)
        empty = {name for name in rows.column_names if rows[name].null_count == self.num_rows}
        left_out = empty - set(KEYS) if keys else empty | set(KEYS)
        return rows.drop_columns([name for name in rows.column_names if name in left_out])

    def _read(self, columns: list[str]) -> pa.Table:
        with reading(self.path):
            file = open_parquet(self.path, self.version)
            # A few rows at a time use the same memory again, which a whole group would get from the system.
            batches = file.iter_batches(
                _BATCH_IMAGES, row_groups=[self.number], columns=columns, use_threads=False
            )
            schema = pa.schema([field for field in file.schema_arrow if field.name in columns])
            table = pa.Table.from_batches(batches, schema=schema)
        # What decoding took is free, and would stay with Arrow beside all that statistics take.
        pa.default_memory_pool().release_unused()
        return table


# Cells are read in their order, those of two checkpoints in turn.
@functools.lru_cache(maxsize=4)
def _whole_group(path: Path, version: Version, number: int) -> pa.Table:
    """Return a row group that cells share, which is small."""
    with reading(path):
        table = open_parquet(path, version).read_row_group(number, use_threads=False)
        return table.replace_schema_metadata(None)


@dataclass(frozen=True)
class Spilled:
    """Rows in a file of this run alone, from byte ``start`` to byte ``end``, with no columns of other cells."""

    path: Path
    start: int
    end: int
    num_rows: int
    schema: pa.Schema

    def table(self, *, keys: bool = True) -> pa.Table:
        """Return them with all columns."""
        return self._read(None)

    def names(self) -> list[str]:
        """Return their names."""
        return self._read([self.schema.get_field_index("image_id")])["image_id"].to_pylist()

    def _read(self, fields: list[int] | None) -> pa.Table:
        # To hand a few columns to threads takes longer than to decode them.
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        with self.path.open("rb") as file:
            file.seek(self.start)
            return pa.ipc.open_stream(file.read(self.end - self.start), options=options).read_all()


def _is_empty(column: Any) -> bool:
    statistics = column.statistics
    return statistics is not None and statistics.has_null_count and statistics.null_count == column.num_values


@dataclass(frozen=True)
class StoredCell:
    """The sums of one cell of one checkpoint.

    Attributes:
        checkpoint: its name.
        cell: what the sums are about.
        chunks: its images, in the order in which they were measured; of several draws put together, one after the
            other for each draw.
        lists: beginnings of columns with an entry per trial, where draws are put together.
        draws: how many they are.
    """

    checkpoint: str
    cell: Cell
    chunks: tuple[SumsChunk, ...]
    lists: tuple[str, ...] = ()
    draws: int = 1

    @property
    def num_images(self) -> int:
        """How many images it holds."""
        return sum(chunk.num_rows for chunk in self.chunks) // self.draws

    def load_all(self) -> tuple[list[str], Arrays]:
        """Return the names of all images, in order, and their columns ``(n, ...)``.

        Raises:
            ValueError: an image occurs twice: shards must be disjoint and are never padded.
        """
        parts = list(self._parts())
        names = [name for part, _ in parts for name in part]
        order = in_order(names)
        columns = {
            name: np.concatenate([columns[name] for _, columns in parts])[order]
            for name in parts[0][1]
            if all(name in columns for _, columns in parts)
        }
        return [names[row] for row in order], columns

    def names(self) -> list[str]:
        """Return the names of the images as ``blocks`` yields them."""
        return [name for chunk in self._first_draw() for name in chunk.names()]

    def blocks(self) -> Iterator[tuple[slice, Arrays]]:
        """Yield the columns of some images at a time, and which of ``names`` these are."""
        start = 0
        for num_images, columns in _join(self._parts()):
            for first in range(0, num_images, BLOCK_IMAGES):
                rows = slice(first, min(first + BLOCK_IMAGES, num_images))
                yield (
                    slice(start + rows.start, start + rows.stop),
                    {name: values[rows] for name, values in columns.items()},
                )
            start += num_images

    def _first_draw(self) -> Sequence[SumsChunk]:
        return self.chunks[: len(self.chunks) // self.draws]

    def _parts(self) -> Iterator[tuple[list[str], Arrays]]:
        """Yield names and columns, chunk by chunk.

        Raises:
            DamagedSumsError: draws are of different images, or the loads of chunks count different choices.
        """
        each, marks = len(self._first_draw()), set[frozenset[str]]()
        for number in range(each):
            decoded = [self._decode(self.chunks[draw * each + number]) for draw in range(self.draws)]
            names, first = decoded[0]
            if any(also != names for also, _ in decoded) or len(self.chunks) % self.draws:
                raise DamagedSumsError(
                    f"The random draws of {self.checkpoint} are of different images; run the probe again with "
                    f"{option('overwrite')}."
                )
            marks |= {_marks(part) for _, part in decoded}
            if len(marks) > 1:
                raise DamagedSumsError(
                    f"Some parts of {self.checkpoint} count all choices as load, others the first; run the probe "
                    f"again with {option('overwrite')}."
                )
            if self.draws == 1:
                yield names, first
            else:
                yield (
                    names,
                    {name: self._together(name, [part[name] for _, part in decoded]) for name in first},
                )

    def _together(self, name: str, columns: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        if name in CONSTANT:
            return columns[0]
        return np.concatenate(columns, axis=1) if name.startswith(self.lists) else np.sum(columns, axis=0)

    def _decode(self, chunk: SumsChunk) -> tuple[list[str], Arrays]:
        table = chunk.table(keys=False)
        columns = {
            name: _to_numpy(name, table[name], self.cell.top_k)
            for name in table.column_names
            if name not in (*KEYS, "image_id") and table[name].null_count == 0
        }
        for name in _LOADS & columns.keys():
            # Runs from before all choices were counted have the first alone.
            if (self.cell.top_k or 0) > 1 and not columns.keys() & {f"{name}_any", f"{name}_of_sets"}:
                columns[f"{name}{_OF_FIRST}"] = np.ones(table.num_rows, dtype=bool)
        return table["image_id"].to_pylist(), columns


def _join(parts: Iterable[tuple[list[str], Arrays]]) -> Iterator[tuple[int, Arrays]]:
    """Yield images and their columns; parts that are too small for a block are joined with those that follow."""
    waiting: list[Arrays] = []
    images = nbytes = 0
    for names, columns in parts:
        if waiting and columns.keys() != waiting[0].keys():
            yield images, _concatenate(waiting)
            waiting, images, nbytes = [], 0, 0
        waiting.append(columns)
        images += len(names)
        nbytes += sum(values.nbytes for values in columns.values())
        if images >= BLOCK_IMAGES or nbytes >= _BLOCK_BYTES:
            yield images, _concatenate(waiting)
            waiting, images, nbytes = [], 0, 0
    if waiting:
        yield images, _concatenate(waiting)


def _concatenate(parts: Sequence[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _marks(columns: Arrays) -> frozenset[str]:
    return frozenset(name for name in columns if name.endswith(_OF_FIRST))


def in_order(names: Sequence[str]) -> NDArray[np.int64]:
    """Return the rows of the names in ascending order.

    Raises:
        ValueError: a name occurs twice.
    """
    array = np.asarray(names, dtype=object)
    order = np.argsort(array, kind="stable")
    ordered = array[order]
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise DamagedSumsError(
            f"The image {repeated[0]!r} was counted twice; run the probe again with {option('overwrite')}."
        )
    return order


def _to_numpy(name: str, column: pa.ChunkedArray, top_k: int) -> NDArray[np.generic]:
    if not pa.types.is_list(column.type):
        return column.to_numpy()
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    # Choices of experts are kept flat, K per patch.
    depth = top_k if name.endswith("_selected") else 1
    lengths, values = np.diff(array.offsets.to_numpy()), array.flatten()
    if values.null_count or depth < 1 or (lengths != lengths[:1]).any() or (lengths % depth).any():
        raise DamagedSumsError(
            f"The lists of {name} have gaps or other lengths than they should; run the probe again with "
            f"{option('overwrite')}."
        )
    lists = values.to_numpy().reshape(len(array), -1)
    return lists.reshape(len(array), -1, depth) if name.endswith("_selected") else lists
