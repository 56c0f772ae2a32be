"""The sums per image of a run, in memory or in files, read cell by cell and block by block.

``images.parquet`` holds the cells of a run one after the other, in row groups of at most ``GROUP`` images. Small cells
share a row group, since one costs milliseconds to write and to read whatever it holds. ``load_all`` reads all images of
a cell at once; ``blocks`` reads some at a time, since there may be any number.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moeprobe.results.own_files import not_as_written, reading
from moeprobe.results.stored_cell import KEYS, RowGroup, Rows, Spilled, StoredCell, in_order
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import NOTE, cell_tables, concatenate, open_writer, rows_of_cells
from moeprobe.runtime.files import Scratch, atomic_file, check_regular, version_of
from moeprobe.runtime.parquet import check_parquet_size, open_parquet
from moeprobe.runtime.processes import spread, usable

# Columns of names; all others are of numbers.
_TEXTS = ("checkpoint", "layer", "router", "view", "tokens", "image_id")
# Images of a row group, and values of the columns of cells that share one: of about 2 MiB.
GROUP, _SHARED_VALUES = 4096, 2**18
# Rows and cells whose statistics one process computes: of fewer, starting others would take as long.
ROWS_OF_ONE_PROCESS, CELLS_OF_ONE_PROCESS = 20_000, 200


class SumsStore:
    """The sums of a run, cell by cell, in the order in which the cells first came.

    Args:
        cells: of all checkpoints; pieces of one checkpoint and cell are joined, their images one after the other.
        keep: what must not be deleted as long as they are used.
    """

    def __init__(self, cells: Iterable[StoredCell], *, keep: Sequence[object] = ()) -> None:
        self._cells: dict[object, StoredCell] = {}
        self._keep = keep
        for cell_sums in cells:
            key = cell_sums.checkpoint, cell_sums.cell.key()
            before = self._cells.get(key)
            self._cells[key] = (
                cell_sums if before is None else replace(before, chunks=before.chunks + cell_sums.chunks)
            )

    def __iter__(self) -> Iterator[StoredCell]:
        return iter(self._cells.values())

    @property
    def num_rows(self) -> int:
        """Rows of all cells."""
        return sum(cell.num_images for cell in self)

    @property
    def layers(self) -> list[str]:
        """The layers that there are sums of."""
        return list(dict.fromkeys(cell.cell.layer for cell in self if cell.cell.layer))

    def names(self) -> list[str]:
        """Return the names of all inputs, as the largest cell of each checkpoint has them."""
        largest = dict[str, StoredCell]()
        for cell in self:
            before = largest.get(cell.checkpoint)
            if before is None or cell.num_images > before.num_images:
                largest[cell.checkpoint] = cell
        return sorted({name for cell in largest.values() for name in cell.names()})

    @property
    def processes(self) -> int:
        """How many processes their statistics are worth, where there are as many."""
        is_much = self.num_rows > ROWS_OF_ONE_PROCESS or len(self._cells) > CELLS_OF_ONE_PROCESS
        return usable() if is_much else 1

    def table(self) -> pa.Table:
        """Return all sums as one table: cell by cell, images in the order of their names."""
        return concatenate([_sort(concatenate([chunk.table() for chunk in cell.chunks])) for cell in self])

    def select(self, predicate: Callable[[StoredCell], bool]) -> "SumsStore":
        """Return the cells that are wanted."""
        return SumsStore((cell for cell in self if predicate(cell)), keep=(self,))

    def rename(self, names: Mapping[str, str]) -> "SumsStore":
        """Return the sums with their checkpoints called by other names."""
        return SumsStore((replace(cell, checkpoint=names[cell.checkpoint]) for cell in self), keep=(self,))

    def sites(self) -> list[list[StoredCell]]:
        """Return the cells of each site (layer, view, severity, draw, tokens), one of each checkpoint."""
        by_site: dict[object, list[StoredCell]] = {}
        for cell in self:
            by_site.setdefault(cell.cell.site(), []).append(cell)
        return list(by_site.values())

    def pool_draws(self, *, lists: tuple[str, ...], keep_single: bool = False) -> "SumsStore":
        """Return the sums with an image's draws joined: added up, except lists of trials, which are joined.

        Cells without draws stay as they are; with ``keep_single`` the single draws stay too, after their pool.
        ``lists``: beginnings of the columns that hold an entry per trial (``metrics.base.trial_lists``).
        """
        single_draws = [cell for cell in self if cell.cell.draw]
        by_cell: dict[object, list[StoredCell]] = {}
        for cell in single_draws:
            by_cell.setdefault((cell.checkpoint, replace(cell.cell, draw=0).key()), []).append(cell)
        pools = [
            StoredCell(
                draws[0].checkpoint,
                replace(draws[0].cell, draw=0),
                tuple(chunk for draw in draws for chunk in draw.chunks),
                lists,
                len(draws),
            )
            for draws in by_cell.values()
        ]
        without_draws = [cell for cell in self if not cell.cell.draw]
        return SumsStore([*pools, *without_draws, *(single_draws if keep_single else [])], keep=(self,))


def concat(parts: Iterable[SumsStore]) -> SumsStore:
    """Return the disjoint union of sums."""
    parts = list(parts)
    return SumsStore((cell for part in parts for cell in part), keep=parts)


def concat_parts(parts: Iterable[SumsStore], *, in_files: bool) -> SumsStore:
    """Return the disjoint union of sums that come one after the other.

    ``in_files``: each moves to a file of this run alone, before the next is computed.
    """
    if not in_files:
        return concat(parts)
    scratch, cells = Scratch(), list[StoredCell]()
    # Chunks share them: of tens of thousands that are alike, they would fill hundreds of megabytes.
    schemas: dict[pa.Schema, pa.Schema] = {}
    for number, part in enumerate(parts):
        cells += spill(scratch.path / f"{number:05d}.arrow", part, schemas)
        del part  # out of memory, before the loop computes the next one
    return SumsStore(cells, keep=(scratch,))


def compute_parts(
    part_of: Callable[[int], SumsStore], number: int, *, progress: Callable[[int], object]
) -> SumsStore:
    """Return the disjoint union of sums that several processes compute, each part moved to a file of this run alone.

    Args:
        part_of: returns a part by its number; it must not use torch (see ``spread``).
        number: of the parts, which come one after the other.
        progress: is called with the number of each part that is done.
    """
    scratch, cells = Scratch(), list[StoredCell]()

    def compute(index: int) -> list[StoredCell]:
        return list(spill(scratch.path / f"{index:05d}.arrow", part_of(index), {}))

    # Each part comes with schemas of its own, most of which are alike.
    schemas: dict[pa.Schema, pa.Schema] = {}
    for index, part in enumerate(spread(compute, number, processes=usable())):
        for cell in part:
            chunks = (
                replace(chunk, schema=schemas.setdefault(chunk.schema, chunk.schema))  # type: ignore[type-var]
                for chunk in cell.chunks
            )
            cells.append(replace(cell, chunks=tuple(chunks)))
        progress(index)
    return SumsStore(cells, keep=(scratch,))


def of_table(images: pa.Table) -> SumsStore:
    """Return the sums of a table in memory."""
    if images.num_rows == 0:
        return SumsStore(())
    return SumsStore(
        StoredCell(checkpoint, cell, (Rows(images, rows),))
        for checkpoint, cell, rows in rows_of_cells(images)
    )


def of_accumulator(accumulator: Accumulator, *, checkpoint: str) -> SumsStore:
    """Return the sums of one checkpoint; one table of thousands of cells would take longer than their sums."""
    return SumsStore(
        StoredCell(checkpoint, cell, (Rows(table, np.arange(table.num_rows)),))
        for cell, table in cell_tables(accumulator, checkpoint=checkpoint)
    )


def of_file(path: Path) -> SumsStore:
    """Return the sums of a file; one whose cells do not lie one after the other is read at once.

    Raises:
        UserError: it cannot be read, is damaged, or holds more than a run writes.
    """
    check_regular(path)
    with reading(path):
        version = version_of(path)
        file = open_parquet(path, version)
        schema = file.schema_arrow.remove_metadata()
        check_parquet_size(path, file.metadata, all_rows=False)
        if problem := _problem_of_columns(schema):
            raise not_as_written(path, problem)
        cells = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            spans = _spans(file, number, schema)
            if spans is None:
                check_parquet_size(path, file.metadata, all_rows=True)
                return of_table(file.read().replace_schema_metadata(None))
            for (checkpoint, *cell), rows in spans:
                chunk = RowGroup(path, version, number, rows, group.num_rows, schema)
                cells.append(StoredCell(checkpoint, Cell(*cell), (chunk,)))
        return SumsStore(cells)


def _spans(file: Any, number: int, schema: pa.Schema) -> list[tuple[list[Any], range]] | None:
    """Return what the sums of a row group are about, cell by cell with its rows; None where cells are mixed."""
    group = file.metadata.row_group(number)
    keys = _keys(group, schema)
    if keys is not None:
        return [(keys, range(group.num_rows))]
    identity = file.read_row_group(number, columns=list(KEYS), use_threads=False).to_pandas()[list(KEYS)]
    cells = identity.groupby(list(KEYS), sort=False, dropna=False).ngroup().to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist()]
    if len(starts) != cells.max() + 1:
        return None
    rows = identity.iloc[starts].astype(object).values.tolist()
    return [
        (keys, range(*span))
        for keys, span in zip(rows, itertools.pairwise([*starts, group.num_rows]), strict=True)
    ]


def count_rows(path: Path) -> int:
    """Return the number of rows of a file of sums; only its footer is read.

    Raises:
        UserError: it cannot be read, or is damaged.
    """
    check_regular(path)
    with reading(path):
        return int(open_parquet(path, version_of(path)).metadata.num_rows)


def has_columns(path: Path) -> bool:
    """Whether a file of sums per image was written by a run that measured something."""
    return bool(open_parquet(path, version_of(path)).schema_arrow.names)


def _problem_of_columns(schema: pa.Schema) -> str | None:
    """Return how columns differ from those that a run writes: keys, whole numbers, doubles, lists of these."""
    lacking = [name for name in (*KEYS, "image_id") if name not in schema.names]
    # A run that measured nothing wrote no columns at all (see ``write``).
    if lacking and schema.names:
        return f"it lacks the column {lacking[0]} of sums per image"
    for field in schema:
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        is_text = field.name in _TEXTS
        is_allowed = (
            pa.types.is_string(kind)
            if is_text
            else pa.types.is_signed_integer(kind) or pa.types.is_float64(kind)
        )
        if not is_allowed:
            return f"it holds {field.name} as {kind}, which no run writes"
    return None


def write(path: Path, stored: SumsStore, *, note: Mapping[str, Any] | None = None) -> None:
    """Write sums; a ``note`` (JSON) travels in the file's metadata.

    The bytes do not depend on how the sums arrived, if the order of the images is the same; up to ``GROUP`` images of a
    cell they do not depend on that either.
    """
    schemas = {id(chunk.schema): chunk.schema for cell in stored for chunk in cell.chunks}.values()
    schema = pa.unify_schemas(list(schemas)) if schemas else pa.schema([])
    schema = schema.with_metadata(None if note is None else {NOTE: json.dumps(note)})
    with atomic_file(path) as temporary, open_writer(temporary, schema) as writer:
        for shared in _pack(_sort(group) for cell in stored for group in _groups(cell)):
            full = pa.concat_tables([schema.empty_table(), *shared], promote_options="default")
            writer.write_table(full.combine_chunks())


def _pack(groups: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield the tables that share a row group, as they come."""
    waiting: list[pa.Table] = []
    rows = values = 0
    for group in groups:
        group_values = _num_values(group)
        if waiting and (rows + group.num_rows > GROUP or values + group_values > _SHARED_VALUES):
            yield waiting
            waiting, rows, values = [], 0, 0
        waiting.append(group)
        rows, values = rows + group.num_rows, values + group_values
    if waiting:
        yield waiting


def _num_values(table: pa.Table) -> int:
    """Return how many values the columns hold: unlike their bytes, the same in memory and of a file."""
    return sum(
        (pc.sum(pc.list_value_length(column)).as_py() or 0)
        if pa.types.is_list(column.type)
        else len(column) - column.null_count
        for column in table.columns
    )


def spill(path: Path, stored: SumsStore, schemas: dict[pa.Schema, pa.Schema]) -> SumsStore:
    """Move sums from memory to a file that only this run reads, and return them.

    A Parquet file of many cells takes long to open, and each of its cells a while to encode.
    Schemas are added to ``schemas``, and one that is equal to an earlier one is replaced by it.
    """
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    cells = []
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        for cell in stored:
            chunks = []
            for group in _groups(cell):
                rows, start = _sort(group), file.tell()
                with pa.ipc.new_stream(file, rows.schema, options=options) as writer:
                    writer.write_table(rows)
                schema = schemas.setdefault(rows.schema, rows.schema)
                chunks.append(Spilled(path, start, file.tell(), rows.num_rows, schema))
            cells.append(replace(cell, chunks=tuple(chunks)))
    return SumsStore(cells)


def _groups(cell: StoredCell) -> Iterator[pa.Table]:
    """Yield the images of a cell, ``GROUP`` at a time."""
    waiting: list[pa.Table] = []
    for chunk in cell.chunks:
        waiting.append(chunk.table())
        while (rows := sum(part.num_rows for part in waiting)) >= GROUP:
            full = concatenate(waiting)
            yield full.slice(0, GROUP)
            waiting = [full.slice(GROUP)] if rows > GROUP else []
    if waiting:
        yield concatenate(waiting)


def _sort(table: pa.Table) -> pa.Table:
    order = in_order(table["image_id"].to_pylist())
    return table if (order == np.arange(len(order))).all() else table.take(pa.array(order))


def _keys(group: Any, schema: pa.Schema) -> list[Any] | None:
    """Return what the sums of a row group are about; None where it holds several cells, or does not say."""
    indices = {group.column(index).path_in_schema: index for index in range(group.num_columns)}
    keys: list[Any] = []
    for name in KEYS:
        statistics = group.column(indices[name]).statistics if name in indices else None
        if statistics is None:
            return None
        if name == "severity" and statistics.null_count == group.num_rows:
            keys.append(float("nan"))
        elif statistics.null_count or not statistics.has_min_max or statistics.min != statistics.max:
            return None
        else:
            # Parquet's least zero is -0.0.
            keys.append(statistics.min + 0.0 if name == "severity" else statistics.min)
    return keys
