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
from moeprobe.results.packed import (
    CELLS,
    PACK,
    PACKED_IMAGES,
    PackedCell,
    PackedRun,
    Place,
    read_pack,
    read_packed_images,
)
from moeprobe.results.sidecars import read_sidecar
from moeprobe.results.stored import SumsStore, of_file
from moeprobe.results.tables import FLOORS, open_writer
from moeprobe.runtime import files
from moeprobe.runtime.run_files import IMAGES
from moeprobe.studies.tradeoff.trainings import ABOUT, Training
from moeprobe.studies.training_files import CURVE

# Rows of a row group, about: what is decoded at least to read one run.
_GROUP, _LARGEST_GROUP = 2**14, 2**16


def pack(folder: OutputFolder, cells: Sequence[Training]) -> None:
    """Pack the folders of finished cells, and remove them.

    Nothing happens while another process shares the output folder: folders are read as well, and the last one packs
    them, or the next call.

    Raises:
        UserError: a file cannot be read, written or removed.
    """
    with folder.exclusive() as is_exclusive:
        if not is_exclusive:
            return
        packed_cells = read_pack(folder.path)
        merged = packed_cells | {cell.name: _merge(cell, packed_cells.get(cell.name)) for cell in cells}
        merged = dict(sorted(merged.items(), key=lambda item: (item[1].about["place"], item[0])))
        if merged != packed_cells:
            if not _same_runs(merged, packed_cells) and not _write_images(folder.path, merged, packed_cells):
                return
            files.write_json(
                folder.path / PACK,
                {"cells": {name: cell.model_dump() for name, cell in merged.items()}},
                compact=True,
            )
        if leftovers := [path for cell in cells for path in _leftovers(cell, merged[cell.name])]:
            folder.discard(leftovers)


def needed_sums(sums: SumsStore) -> SumsStore:
    """Return the sums that the table follows from: patches and output, without the noise floor."""
    return sums.select(lambda stored: stored.cell.view not in FLOORS and stored.cell.tokens in ("patch", ""))


def _merge(cell: Training, packed: PackedCell | None) -> PackedCell:
    """Return a cell with its packed runs and the runs in its folder."""
    info = cell.info()
    assert info is not None
    runs = {} if packed is None else dict(packed.runs)
    for question in cell.questions():
        # If a run is packed already, its folder is a leftover of a killed process.
        if question.folder not in runs:
            path = cell.folder / question.folder
            measured = finished.read(path)
            images = needed_sums(measured.sums).table()
            runs[question.folder] = PackedRun(
                rows=images.num_rows,
                columns=images.column_names,
                sha256="".join(measured.runs.values()),
                sidecar=read_sidecar(path),
            )
    return PackedCell(about=info, metrics=cell.curve(), runs=dict(sorted(runs.items())))


def _leftovers(cell: Training, packed: PackedCell) -> Iterator[str]:
    """Yield the remaining files of a packed cell's folder, relative to the output folder."""
    prefix = f"{CELLS}/{cell.name}"
    yield from (f"{prefix}/{name}/" for name in packed.runs if files.is_folder(cell.folder / name))
    yield from (f"{prefix}/{name}" for name in (ABOUT, CURVE) if files.is_file(cell.folder / name))


def _same_runs(cells: Mapping[str, PackedCell], other_cells: Mapping[str, PackedCell]) -> bool:
    return {name: cell.runs for name, cell in cells.items()} == {
        name: cell.runs for name, cell in other_cells.items()
    }


def _write_images(out: Path, cells: Mapping[str, PackedCell], packed_cells: Mapping[str, PackedCell]) -> bool:
    """Write the sums of all runs, run by run and cell by cell; returns False where they do not fit into one table.

    That is so where two versions of moeprobe gave a column different types. Row groups begin with a run, so that the
    bytes do not depend on the order of packing.
    """
    sums = _Sums(out, packed_cells)
    names = sorted({name for cell in cells.values() for name in cell.runs})
    runs = [(cell, name) for name in names for cell in cells if name in cells[cell].runs]
    try:
        schema = pa.unify_schemas([sums.schema(*run) for run in runs])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    schema = pa.schema([("run", pa.string()), ("cell", pa.string()), *schema])
    with files.atomic_file(out / PACKED_IMAGES) as temporary, open_writer(temporary, schema) as writer:
        waiting: list[pa.Table] = []
        for number, run in enumerate(runs, 1):
            waiting.append(sums.read(*run))
            if number == len(runs) or sum(part.num_rows for part in waiting) >= _GROUP:
                group = pa.concat_tables([schema.empty_table(), *waiting], promote_options="default")
                for start in range(0, group.num_rows, _LARGEST_GROUP):
                    writer.write_table(group.slice(start, _LARGEST_GROUP).combine_chunks())
                waiting = []
    return True


class _Sums:
    """The sums per image of runs, packed already or in folders."""

    def __init__(self, out: Path, packed_cells: Mapping[str, PackedCell]) -> None:
        self._out = out
        self._kept = {
            (cell, name): run for cell, packed in packed_cells.items() for name, run in packed.runs.items()
        }
        self._packed = pq.read_schema(out / PACKED_IMAGES) if self._kept else None

    def schema(self, cell: str, name: str) -> pa.Schema:
        """Return the columns of a run."""
        if self._packed is not None and (cell, name) in self._kept:
            return pa.schema([self._packed.field(column) for column in self._kept[cell, name].columns])
        return needed_sums(of_file(self._out / CELLS / cell / name / IMAGES)).table().schema

    def read(self, cell: str, name: str) -> pa.Table:
        """Return the sums of a run, with the columns ``run`` and ``cell`` before them."""
        if (cell, name) in self._kept:
            images = read_packed_images(Place(self._out, cell, name, self._kept[cell, name]))
        else:
            images = needed_sums(of_file(self._out / CELLS / cell / name / IMAGES)).table()
        for column, value in (("cell", cell), ("run", name)):
            images = images.add_column(0, column, pa.repeat(pa.scalar(value, pa.string()), images.num_rows))
        return images
