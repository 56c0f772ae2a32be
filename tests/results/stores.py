"""The cells of sums, all images of each at hand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from moeprobe.results.stored import SumsStore, of_table
from moeprobe.results.sums import Cell

Whole = tuple[str, Cell, list[str], dict[str, NDArray[np.generic]]]


def cells(sums: SumsStore | pa.Table) -> Iterator[Whole]:
    """Checkpoint, cell, names and columns, in the order in which the cells first came."""
    for one in of_table(sums) if isinstance(sums, pa.Table) else sums:
        yield one.checkpoint, one.cell, *one.load_all()


def read_images(path: Path) -> pa.Table:
    """The rows of a file of sums, as they are in it."""
    return pq.read_table(path).replace_schema_metadata(None)
