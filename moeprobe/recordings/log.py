"""A server's log of its routing, as JSON lines (see ``log_rows``), read into the rows of a trace."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from moeprobe.errors import UserError
from moeprobe.recordings.log_rows import Fault, Row, parse
from moeprobe.recordings.packed import grouped
from moeprobe.runtime.files import open_regular


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
        yield from grouped(self._rows(), progress=self._progress)
        self._check_layers()

    def _rows(self) -> Iterator[tuple[Row, int]]:
        lines_read: set[tuple[str, str]] = set()
        try:
            with open_regular(self.path) as file:
                for number, line in enumerate(file, start=1):
                    if not line.strip():
                        continue
                    try:
                        row = parse(line, num_experts=self._num_experts)
                        if (row.id, row.layer) in lines_read:
                            raise Fault(f"{row.layer} of {row.id} was there before")
                        for name, value in self.layers.setdefault(row.layer, row.layer_fields).items():
                            if row.layer_fields[name] != value:
                                raise Fault(
                                    f"{name} of {row.layer} is {row.layer_fields[name]}, and was {value} in the "
                                    "lines before"
                                )
                    except Fault as fault:
                        raise UserError(f"{self.path}, line {number}: {fault}.") from None
                    lines_read.add((row.id, row.layer))
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
