"""The runs of a trade-off's finished cells, packed into two files: sums per image as Parquet, all else as JSON.

``OUT/cells.parquet`` has the columns ``run`` and ``cell`` before the columns of the sums per image, ``OUT/cells.json``
the content of the files in each cell's folder. A path ``OUT/cells/CELL/RUN`` is read from them as if the folder were
still there. The JSON is written after the Parquet, so a run counts as packed only where the JSON names it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from moeprobe.errors import UserError, option
from moeprobe.results.own_files import STRICT, reading, validate
from moeprobe.runtime import files
from moeprobe.runtime.parquet import check_parquet_size

if TYPE_CHECKING:
    import pyarrow as pa

# The folder of cells in progress, and the two files that finished ones are packed into.
CELLS, PACK, PACKED_IMAGES = "cells", "cells.json", "cells.parquet"
# Some kilobytes per run: enough for tens of thousands of runs.
_LIMIT = 2**28
_MEND = f"restore the file, or measure again with {option('overwrite')}"


class PackedRun(BaseModel):
    """One run of a probe: its rows and columns in the Parquet file, the hash its own file had, and its sidecar."""

    model_config = STRICT

    rows: int
    columns: list[str]
    sha256: str
    sidecar: dict[str, Any]


class PackedCell(BaseModel):
    """One cell: the content of its ``cell.json`` and ``metrics.csv`` (None without one), and its runs by name."""

    model_config = STRICT

    about: dict[str, Any]
    metrics: str | None = None
    runs: dict[str, PackedRun]


class _Pack(BaseModel):
    model_config = STRICT

    cells: dict[str, PackedCell]


@dataclass(frozen=True)
class Place:
    """Where a packed run is found: the folder of the two files, the cell, the run, and what the JSON says of it."""

    out: Path
    cell: str
    name: str
    run: PackedRun


# By the path of the JSON: read once per version of the file, since each of a sweep's runs is looked up in it.
_PACKS: dict[Path, tuple[files.Version, dict[str, PackedCell]]] = {}


def read_pack(out: Path) -> dict[str, PackedCell]:
    """Return the packed cells of a trade-off's folder by name, in the order of the file; empty where there are none.

    Raises:
        UserError: the JSON cannot be read, or is not as moeprobe wrote it.
    """
    path = out / PACK
    try:
        version = files.version_of(path)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return {}
    if path not in _PACKS or _PACKS[path][0] != version:
        content = files.read_json(path, limit=_LIMIT)
        _PACKS[path] = version, validate(_Pack, content, path, mend=_MEND).cells
    return _PACKS[path][1]


def find_cell(folder: Path) -> PackedCell | None:
    """Return the packed cell that a path ``OUT/cells/CELL`` means; None where there is none."""
    try:
        folder = files.absolute(folder)
    except OSError:  # the working directory is gone
        return None
    return read_pack(folder.parents[1]).get(folder.name) if folder.parent.name == CELLS else None


def find_run(path: Path) -> Place | None:
    """Return the packed run that a path ``OUT/cells/CELL/RUN`` means; None where there is none."""
    cell = find_cell(path.parent)
    if cell is None or path.name not in cell.runs:
        return None
    path = files.absolute(path)
    return Place(path.parents[2], path.parent.name, path.name, cell.runs[path.name])


def read_packed_images(run: Place) -> "pa.Table":
    """Return the packed sums per image of a run, as its own file held them.

    Raises:
        UserError: the Parquet file cannot be read, or lacks rows or columns of the run.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = run.out / PACKED_IMAGES
    if not files.is_there(path):
        raise UserError(f"{path} is missing, which {PACK} next to it belongs to; restore the file.")
    of_run = (pc.field("run") == run.name) & (pc.field("cell") == run.cell)
    with reading(path, mend=_MEND):
        check_parquet_size(path, pq.read_metadata(path), all_rows=False)
        images = pq.read_table(path, columns=run.run.columns, filters=of_run)
    if images.num_rows != run.run.rows:
        raise UserError(
            f"{path} holds {images.num_rows:,} rows of {run.cell}/{run.name} instead of {run.run.rows:,}; {_MEND}."
        )
    return images.replace_schema_metadata(None)
