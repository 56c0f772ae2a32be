"""The sums per image of a run, in memory or in files, read cell by cell and block by block.

``images.parquet`` holds the cells of a run one after the other, in row groups of one cell and at most ``GROUP`` images
each. What needs all images of a cell at once reads the ``whole`` of it; what must not, since there may be any number of
them, reads its ``blocks``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from moeprobe.results.stored_cell import KEYS, Group, Rows, StoredCell, in_order, opened
from moeprobe.results.sums import Cell
from moeprobe.results.tables import NOTE, concatenate, open_writer, rows_of_cells
from moeprobe.runtime.files import atomic_file, version_of
from moeprobe.runtime.parquet import check_size
from moeprobe.runtime.processes import usable

# Images of a row group.
GROUP = 4096
# Rows whose statistics one process computes: of fewer, starting others would take as long.
_ALONE = 20_000


class Stored:
    """The sums of a run, cell by cell, in the order in which the cells first came.

    Args:
        cells: of all checkpoints; those of one checkpoint and cell are one, with their images one after the other.
        keep: what must not be deleted as long as they are used.
    """

    def __init__(self, cells: Iterable[StoredCell], *, keep: Sequence[object] = ()) -> None:
        self._cells: dict[object, StoredCell] = {}
        self._keep = keep
        for one in cells:
            key = one.checkpoint, one.cell.key()
            before = self._cells.get(key)
            self._cells[key] = one if before is None else replace(before, pieces=before.pieces + one.pieces)

    def __iter__(self) -> Iterator[StoredCell]:
        return iter(self._cells.values())

    @property
    def num_rows(self) -> int:
        """Rows of all cells."""
        return sum(one.num_images for one in self)

    @property
    def layers(self) -> list[str]:
        """The layers that there are sums of."""
        return list(dict.fromkeys(one.cell.layer for one in self if one.cell.layer))

    @property
    def processes(self) -> int:
        """How many processes their statistics are worth, where there are as many."""
        return usable() if self.num_rows > _ALONE else 1

    def table(self) -> pa.Table:
        """Return all sums as one table: cell by cell, images in the order of their names."""
        return concatenate([_sorted(concatenate([piece.table() for piece in one.pieces])) for one in self])

    def where(self, wanted: Callable[[StoredCell], bool]) -> "Stored":
        """Return the cells that are wanted."""
        return Stored((one for one in self if wanted(one)), keep=(self,))

    def renamed(self, names: Mapping[str, str]) -> "Stored":
        """Return the sums with their checkpoints called by other names."""
        return Stored((replace(one, checkpoint=names[one.checkpoint]) for one in self), keep=(self,))

    def places(self) -> list[list[StoredCell]]:
        """Return the cells of each place (layer, view, severity, draw, tokens), one of each checkpoint."""
        by_place: dict[object, list[StoredCell]] = {}
        for one in self:
            by_place.setdefault(one.cell.place(), []).append(one)
        return list(by_place.values())

    def with_draws_together(self, *, lists: tuple[str, ...], keep_single: bool = False) -> "Stored":
        """Return the sums with those of an image's draws put together: added up, but for lists of trials.

        Cells without draws stay as they are; with ``keep_single`` the single draws stay too, after their pool.
        ``lists``: beginnings of the columns that hold an entry per trial (``metrics.base.trial_lists``).
        """
        drawn = [one for one in self if one.cell.draw]
        by_cell: dict[object, list[StoredCell]] = {}
        for one in drawn:
            by_cell.setdefault((one.checkpoint, replace(one.cell, draw=0).key()), []).append(one)
        pools = [
            StoredCell(
                draws[0].checkpoint,
                replace(draws[0].cell, draw=0),
                tuple(piece for draw in draws for piece in draw.pieces),
                lists,
                len(draws),
            )
            for draws in by_cell.values()
        ]
        rest = [one for one in self if not one.cell.draw]
        return Stored([*pools, *rest, *(drawn if keep_single else [])], keep=(self,))


def together(parts: Iterable[Stored]) -> Stored:
    """Return the disjoint union of sums."""
    parts = list(parts)
    return Stored((one for part in parts for one in part), keep=parts)


def of_table(images: pa.Table) -> Stored:
    """Return the sums of a table in memory."""
    if images.num_rows == 0:
        return Stored(())
    return Stored(
        StoredCell(checkpoint, cell, (Rows(images, rows),))
        for checkpoint, cell, rows in rows_of_cells(images)
    )


def of_file(path: Path) -> Stored:
    """Return the sums of a file; those of a file whose row groups hold several cells are read.

    Raises:
        OSError: it cannot be read.
        pa.ArrowException: it is damaged.
        UserError: it holds more than a run writes.
    """
    version = version_of(path)
    file = opened(path, version)
    schema = file.schema_arrow.remove_metadata()
    check_size(path, file.metadata, whole=False)
    cells = []
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        keys = _keys(group, schema)
        if keys is None:
            check_size(path, file.metadata, whole=True)
            return of_table(file.read().replace_schema_metadata(None))
        checkpoint, *cell = keys
        cells.append(
            StoredCell(checkpoint, Cell(*cell), (Group(path, version, number, group.num_rows, schema),))
        )
    return Stored(cells)


def write(path: Path, stored: Stored, *, note: Mapping[str, Any] | None = None) -> None:
    """Write sums; a ``note`` (JSON) travels in the file's metadata.

    Row groups are of one cell each. Their bytes do not depend on how the sums came, as far as the order of the images
    is the same; up to ``GROUP`` images they do not depend on that either.
    """
    schemas = {id(piece.schema): piece.schema for one in stored for piece in one.pieces}.values()
    schema = pa.unify_schemas(list(schemas)) if schemas else pa.schema([])
    schema = schema.with_metadata(None if note is None else {NOTE: json.dumps(note)})
    with atomic_file(path) as temporary, open_writer(temporary, schema) as writer:
        for one in stored:
            for group in _groups(one):
                full = pa.concat_tables([schema.empty_table(), _sorted(group)], promote_options="default")
                writer.write_table(full.combine_chunks())


def _groups(one: StoredCell) -> Iterator[pa.Table]:
    """Yield the images of a cell, ``GROUP`` at a time."""
    waiting: list[pa.Table] = []
    for piece in one.pieces:
        waiting.append(piece.table())
        while (rows := sum(part.num_rows for part in waiting)) >= GROUP:
            full = concatenate(waiting)
            yield full.slice(0, GROUP)
            waiting = [full.slice(GROUP)] if rows > GROUP else []
    if waiting:
        yield concatenate(waiting)


def _sorted(table: pa.Table) -> pa.Table:
    order = in_order(table["image_id"].to_pylist())
    return table if (order == np.arange(len(order))).all() else table.take(pa.array(order))


def _keys(group: Any, schema: pa.Schema) -> list[Any] | None:
    """Return what the sums of a row group are about; None where it holds several cells, or does not say."""
    places = {group.column(place).path_in_schema: place for place in range(group.num_columns)}
    keys: list[Any] = []
    for name in KEYS:
        about = group.column(places[name]).statistics if name in places else None
        if about is None:
            return None
        if name == "severity" and about.null_count == group.num_rows:
            keys.append(float("nan"))
        elif about.null_count or not about.has_min_max or about.min != about.max:
            return None
        else:
            # Parquet's least zero is -0.0.
            keys.append(about.min + 0.0 if name == "severity" else about.min)
    return keys
