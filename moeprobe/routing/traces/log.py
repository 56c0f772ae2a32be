"""A server's log of its routing, as JSON lines (see ``log_rows``), read into the rows of a trace."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.format import COLUMNS, batch, lists
from moeprobe.routing.traces.log_rows import Fault, Row, parse
from moeprobe.runtime.files import open_regular

# Rows and list entries of a row group, about.
_ROWS, _VALUES = 4096, 2**18


class Log:
    """A log that is read once, from the beginning.

    Args:
        path: the file.
        num_experts: E of every layer where a line does not say; None = each line must.
        progress: called with the bytes read since the last call.

    Attributes:
        requests: for each the number of its layers that were read.
        layers: MoE layers in the order in which they came.
        num_tokens: tokens of all lines.
    """

    def __init__(
        self, path: Path, *, num_experts: int | None = None, progress: Callable[[int], None] | None = None
    ) -> None:
        self.path = path
        self.requests: dict[str, int] = {}
        self.layers: dict[str, dict[str, Any]] = {}
        self.num_tokens = 0
        self._num_experts = num_experts
        self._progress = progress or (lambda count: None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a trace, some thousands at a time.

        Raises:
            UserError: the file cannot be read, a line is not what it should be (the sentence has its number), or
                at the end a request lacks a layer.
        """
        rows: list[Row] = []
        values, read = 0, 0
        for row, size in self._rows():
            rows.append(row)
            read += size
            values += row.experts.size + (0 if row.all_gates is None else row.all_gates.size)
            if len(rows) >= _ROWS or values >= _VALUES:
                yield _batch(rows)
                self._progress(read)
                rows, values, read = [], 0, 0
        if rows:
            yield _batch(rows)
            self._progress(read)
        self._check_layers()

    def _rows(self) -> Iterator[tuple[Row, int]]:
        seen: set[tuple[str, str]] = set()
        try:
            with open_regular(self.path) as file:
                for number, line in enumerate(file, start=1):
                    if not line.strip():
                        continue
                    try:
                        row = parse(line, num_experts=self._num_experts)
                        if (row.id, row.layer) in seen:
                            raise Fault(f"{row.layer} of {row.id} was there before")
                        for name, value in self.layers.setdefault(row.layer, row.alike).items():
                            if row.alike[name] != value:
                                raise Fault(
                                    f"{name} of {row.layer} is {row.alike[name]}, and was {value} in the lines before"
                                )
                    except Fault as fault:
                        raise UserError(f"{self.path}, line {number}: {fault}.") from None
                    seen.add((row.id, row.layer))
                    self.requests[row.id] = self.requests.get(row.id, 0) + 1
                    self.num_tokens += len(row.experts)
                    yield row, len(line)
        except OSError as error:
            raise UserError(f"Cannot read {self.path}: {error.strerror or error}.") from error

    def _check_layers(self) -> None:
        if not self.requests:
            raise UserError(f"{self.path} holds no requests.")
        for name, count in self.requests.items():
            if count < len(self.layers):
                raise UserError(
                    f"{self.path} has {count} of the {len(self.layers)} layers ({', '.join(self.layers)}) of request "
                    f"{name}; take out its lines, or log all of its layers."
                )


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "layer": [row.layer for row in rows],
        "num_tokens": [len(row.experts) for row in rows],
        "gates_sum_to_one": [row.all_gates is not None for row in rows],
        "experts_choose": False,
    }
    for name in rows[0].alike:
        columns[name] = [row.alike[name] for row in rows]
    for name in ("experts", "processed", "valid", "gates", "all_gates"):
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
