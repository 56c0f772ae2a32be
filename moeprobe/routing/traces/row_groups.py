"""Rows that other programs' files are read as, gathered into row groups of a trace."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.routing.traces.format import COLUMNS, batch, lists
from moeprobe.routing.traces.log_rows import Row

# Rows and list entries of a row group, about.
_ROWS, _VALUES = 4096, 2**18


def grouped(
    entries: Iterable[tuple[Row, int]], *, progress: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a trace, some thousands at a time.

    Args:
        entries: rows, and how many bytes of the file each took.
        progress: called with the bytes since the last call.
    """
    rows: list[Row] = []
    values, read = 0, 0
    for row, size in entries:
        rows.append(row)
        read += size
        values += row.experts.size + (0 if row.all_gates is None else row.all_gates.size)
        if len(rows) >= _ROWS or values >= _VALUES:
            yield _batch(rows)
            progress(read)
            rows, values, read = [], 0, 0
    if rows:
        yield _batch(rows)
        progress(read)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "layer": [row.layer for row in rows],
        "num_tokens": [len(row.experts) for row in rows],
        "gates_sum_to_one": [row.all_gates is not None and row.sum_to_one for row in rows],
        "experts_choose": False,
    }
    for name in rows[0].alike:
        columns[name] = [row.alike[name] for row in rows]
    for name in ("experts", "processed", "valid", "generated", "token_ids", "gates", "all_gates", "counts"):
        columns[name] = _lists(name, [getattr(row, name) for row in rows])
    return batch(columns, rows=len(rows))


def _lists(name: str, values: list[NDArray[Any] | None]) -> pa.Array:
    """Return a column of lists, of which some may be missing (of another layer)."""
    kind = COLUMNS[name][0]
    values_present = [value for value in values if value is not None]
    lengths = np.array([value.size for value in values_present], dtype=np.int64)
    flat = np.concatenate([value.ravel() for value in values_present]) if values_present else np.zeros(0)
    column = lists(flat, lengths, rows=len(values_present), kind=kind)
    present = np.array([value is not None for value in values])
    places = np.cumsum(present) - 1
    return column.take(pa.array(places, pa.int64(), mask=~present))
