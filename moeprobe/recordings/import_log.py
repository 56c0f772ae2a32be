"""Make a routing trace of a server's log, JSON lines (see ``log_rows``)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from moeprobe.errors import UserError, option
from moeprobe.recordings.capture_check import CaptureCheck, not_empty
from moeprobe.recordings.compressed import open_expanded
from moeprobe.recordings.destination import check_destination, named_checkpoint, new_trace, num_bytes
from moeprobe.recordings.faults import Finding
from moeprobe.recordings.file_kinds import HEAD, check_log
from moeprobe.recordings.format import is_ordered, metadata
from moeprobe.recordings.log_rows import Fault, Row, faults_at, parse
from moeprobe.recordings.long_text import read_line
from moeprobe.recordings.responses import MOST_BYTES, group_rows
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.files import is_file
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.runtime.similar_paths import did_you_mean_path


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
        yield from group_rows(self._rows(), progress=self._progress)
        self._check_layers()

    def _rows(self) -> Iterator[tuple[Row, int]]:
        lines_read: set[tuple[str, str]] = set()
        try:
            with open_expanded(self.path) as file:
                check_log(self.path, file.peek(HEAD)[:HEAD])
                number = 0
                while line := read_line(file, MOST_BYTES + 1):
                    number += 1
                    if len(line) > MOST_BYTES:
                        raise UserError(
                            f"{self.path}, line {number} has more than {MOST_BYTES:,} bytes; split it."
                        )
                    if not line.strip():
                        continue
                    with faults_at(self.path, f"line {number}"):
                        row = parse(line, num_experts=self._num_experts)
                        if (row.id, row.layer) in lines_read:
                            raise Fault(f"{row.layer} of {row.id} was there before")
                        for name, value in self.layers.setdefault(row.layer, row.layer_fields).items():
                            if row.layer_fields[name] != value:
                                raise Fault(
                                    f"{name} of {row.layer} is {row.layer_fields[name]}, and was {value} in the "
                                    "lines before"
                                )
                    lines_read.add((row.id, row.layer))
                    self.requests[row.id] = self.requests.get(row.id, 0) + 1
                    self.num_tokens += len(row.experts)
                    yield row, file.advance()
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


@dataclass(frozen=True)
class ImportedTrace:
    """What came of a log: the file, and how many requests, layers and tokens (of all layers) are in it.

    ``findings``: what a check for known faults of capture found. ``unordered``: the layers of which it is not known
    which of a token's experts came first, as neither gates nor what the experts are ordered by were logged.
    """

    path: Path
    requests: int
    layers: list[str]
    tokens: int
    nbytes: int
    findings: list[Finding]
    unordered: list[str]


@check_arguments
def import_trace(
    log: str | Path,
    path: str | Path,
    *,
    num_experts: int | None = None,
    name: str | None = None,
    data: str = "requests",
    rows_per_file: int | None = None,
    overwrite: bool = False,
    watcher: Progress | None = None,
) -> ImportedTrace:
    """Make a trace from a log of JSON lines (see ``recordings.import_log``).

    A request with three tokens, which choose one of two experts:

    >>> from pathlib import Path
    >>> from moeprobe import api
    >>> _ = Path("log.jsonl").write_text('{"id": "r17", "layer": "mlp", "experts": [[0], [1], [1]]}')
    >>> recorded = api.import_trace("log.jsonl", "log.parquet", num_experts=2)
    >>> recorded.requests, recorded.layers, recorded.tokens
    (1, ['mlp'], 3)

    Args:
        log: the file.
        path: of the new trace, ``.parquet``; with ``rows_per_file`` of a folder.
        num_experts: of every layer, where the log does not say.
        name: of the model in tables; None = the trace's.
        data: what the tables call the requests.
        rows_per_file: write parts of at least so many rows (a layer of a request each); None = one file.
        overwrite: replace an earlier trace.
        watcher: shows the bytes read.

    Raises:
        UserError: a line is no routing of a layer, nothing was captured, or the files cannot be read or written.
    """
    log, path = Path(log), Path(path)
    check_destination(path, overwrite=overwrite, rows_per_file=rows_per_file)
    if num_experts is not None and num_experts < 1:
        raise UserError(f"{option('num_experts')} takes a positive number; got {num_experts}.")
    checkpoint = named_checkpoint(name or path.stem, data=data)
    watcher = progress_of(watcher)
    if not is_file(log):
        raise UserError(f"There is no log {log}.{did_you_mean_path(log)}")
    watcher.start(f"import {log.name}", log.stat().st_size)
    entries = Log(log, num_experts=num_experts, progress=watcher.advance)
    check = CaptureCheck()

    def describe_part() -> dict[str, Any]:
        return metadata(checkpoint=checkpoint, layers=list(entries.layers), data=data)

    with new_trace(
        path, overwrite=overwrite, rows_per_file=rows_per_file, describe_part=describe_part
    ) as file:
        for rows in entries.batches():
            check.add(rows)
            file.write([rows])
        findings = not_empty(check, str(log))
        file.close(describe_part())
    unordered = [
        name
        for name, shared in entries.layers.items()
        if not is_ordered(top_k=shared["top_k"], ordered_by=shared["ordered_by"])
    ]
    layers, size = list(entries.layers), num_bytes(path)
    return ImportedTrace(path, len(entries.requests), layers, entries.num_tokens, size, findings, unordered)
