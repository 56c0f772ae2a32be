"""Cells that are finished go from folders of their own into two files (see ``results.packed``).

Kept are the sums that the table follows from, of patches and of the output: less than half of all. What is derived from
them, and the noise floor and prefix tokens, which no number of the table is about, go with the folders.

A kill at any moment loses nothing: the Parquet file is replaced as a whole, then the JSON file, and only then are the
folders removed, which until the JSON names them are what counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from moeprobe.results import finished
from moeprobe.results.folder import OutputFolder
from moeprobe.results.packed import PackedCell, PackedRun, Place, read_pack, read_packed_images
from moeprobe.results.sidecars import read_sidecar
from moeprobe.results.stored import Stored, of_file
from moeprobe.results.tables import FLOORS, open_writer
from moeprobe.runtime.filenames import CELLS, IMAGES, PACK, PACKED_IMAGES
from moeprobe.runtime.files import atomic_file, write_json
from moeprobe.studies.tradeoff.trainings import ABOUT, METRICS, Cell

# Rows of a row group, about: what is decoded at least to read one run.
_GROUP, _LARGEST_GROUP = 2**14, 2**16


def pack(folder: OutputFolder, cells: Sequence[Cell]) -> None:
    """Pack the folders of finished cells, and remove them.

    Nothing happens while another process shares the output folder: folders are read as well, and the last one packs
    them, or the next call.

    Raises:
        UserError: a file cannot be read, written or removed.
    """
    with folder.alone() as alone:
        if not alone:
            return
        kept = read_pack(folder.path)
        merged = kept | {cell.name: _merged(cell, kept.get(cell.name)) for cell in cells}
        merged = dict(sorted(merged.items(), key=lambda item: (item[1].about["place"], item[0])))
        if merged != kept:
            if not _same_runs(merged, kept) and not _write_images(folder.path, merged, kept):
                return
            write_json(
                folder.path / PACK, {"cells": {name: cell.model_dump() for name, cell in merged.items()}}
            )
        if left := [path for cell in cells for path in _left(cell, merged[cell.name])]:
            folder.discard(left)


def of_table(sums: Stored) -> Stored:
    """Return the sums that the table follows from: patches and output, without the noise floor."""
    return sums.where(lambda one: one.cell.view not in FLOORS and one.cell.tokens in ("patch", ""))


def _merged(cell: Cell, kept: PackedCell | None) -> PackedCell:
    """Return a cell with what was packed of it before and what its folder holds."""
    about = cell.about()
    assert about is not None
    runs = {} if kept is None else dict(kept.runs)
    for question in cell.questions():
        # Of one that is packed the folder is what a kill left.
        if question.folder not in runs:
            path = cell.folder / question.folder
            measured = finished.read(path)
            images = of_table(measured.sums).table()
            runs[question.folder] = PackedRun(
                rows=images.num_rows,
                columns=images.column_names,
                sha256="".join(measured.runs.values()),
                sidecar=read_sidecar(path),
            )
    return PackedCell(about=about, metrics=cell.curve(), runs=dict(sorted(runs.items())))


def _left(cell: Cell, packed: PackedCell) -> Iterator[str]:
    """Yield what is still there of a packed cell's folder, relative to the output folder."""
    below = f"{CELLS}/{cell.name}"
    yield from (f"{below}/{name}/" for name in packed.runs if (cell.folder / name).is_dir())
    yield from (f"{below}/{name}" for name in (ABOUT, METRICS) if (cell.folder / name).is_file())


def _same_runs(one: Mapping[str, PackedCell], other: Mapping[str, PackedCell]) -> bool:
    return {name: cell.runs for name, cell in one.items()} == {
        name: cell.runs for name, cell in other.items()
    }


def _write_images(out: Path, cells: Mapping[str, PackedCell], kept: Mapping[str, PackedCell]) -> bool:
    """Write the sums of all runs, run by run and cell by cell; returns False where they do not fit into one table.

    That is so where two versions of moeprobe gave a column different types. Row groups begin with a run, so that the
    bytes do not depend on what was packed when.
    """
    sums = _Sums(out, kept)
    names = sorted({name for cell in cells.values() for name in cell.runs})
    places = [(cell, name) for name in names for cell in cells if name in cells[cell].runs]
    try:
        schema = pa.unify_schemas([sums.schema(*place) for place in places])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    schema = pa.schema([("run", pa.string()), ("cell", pa.string()), *schema])
    with atomic_file(out / PACKED_IMAGES) as temporary, open_writer(temporary, schema) as writer:
        waiting: list[pa.Table] = []
        for number, place in enumerate(places, 1):
            waiting.append(sums.read(*place))
            if number == len(places) or sum(part.num_rows for part in waiting) >= _GROUP:
                group = pa.concat_tables([schema.empty_table(), *waiting], promote_options="default")
                for start in range(0, group.num_rows, _LARGEST_GROUP):
                    writer.write_table(group.slice(start, _LARGEST_GROUP).combine_chunks())
                waiting = []
    return True


class _Sums:
    """The sums per image of runs, packed already or in folders."""

    def __init__(self, out: Path, kept: Mapping[str, PackedCell]) -> None:
        self._out = out
        self._kept = {(cell, name): run for cell, about in kept.items() for name, run in about.runs.items()}
        self._packed = pq.read_schema(out / PACKED_IMAGES) if self._kept else None

    def schema(self, cell: str, name: str) -> pa.Schema:
        """Return the columns of a run."""
        if self._packed is not None and (cell, name) in self._kept:
            return pa.schema([self._packed.field(column) for column in self._kept[cell, name].columns])
        return of_table(of_file(self._out / CELLS / cell / name / IMAGES)).table().schema

    def read(self, cell: str, name: str) -> pa.Table:
        """Return the sums of a run, with the columns ``run`` and ``cell`` before them."""
        if (cell, name) in self._kept:
            images = read_packed_images(Place(self._out, cell, name, self._kept[cell, name]))
        else:
            images = of_table(of_file(self._out / CELLS / cell / name / IMAGES)).table()
        for column, value in (("cell", cell), ("run", name)):
            images = images.add_column(0, column, pa.repeat(pa.scalar(value, pa.string()), images.num_rows))
        return images
