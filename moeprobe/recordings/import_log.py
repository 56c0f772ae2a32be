"""Make a routing trace of a server's log."""

from dataclasses import dataclass
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.recordings.capture_check import CaptureCheck, not_empty
from moeprobe.recordings.destination import check_destination, named_checkpoint, new_trace
from moeprobe.recordings.faults import Finding
from moeprobe.recordings.format import is_ordered, metadata, writing
from moeprobe.recordings.log import Log
from moeprobe.runtime.files import is_file
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Progress, progress_of


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


@checked
def import_trace(
    log: str | Path,
    path: str | Path,
    *,
    num_experts: int | None = None,
    name: str | None = None,
    data: str = "requests",
    overwrite: bool = False,
    watcher: Progress | None = None,
) -> ImportedTrace:
    """Make a trace from a log of JSON lines (see ``recordings.log``).

    Args:
        log: the file.
        path: of the new trace, ``.parquet``.
        num_experts: of every layer, where the log does not say.
        name: of the model in tables; None = the trace's.
        data: what the tables call the requests.
        overwrite: replace an earlier trace.
        watcher: shows the bytes read.

    Raises:
        UserError: a line is no routing of a layer, nothing was captured, or the files cannot be read or written.
    """
    log, path = Path(log), Path(path)
    check_destination(path, overwrite=overwrite)
    if num_experts is not None and num_experts < 1:
        raise UserError(f"--num-experts takes a positive number; got {num_experts}.")
    checkpoint = named_checkpoint(name or path.stem, data=data)
    watcher = progress_of(watcher)
    if not is_file(log):
        raise UserError(f"There is no log {log}.")
    watcher.start(f"import {log.name}", log.stat().st_size)
    entries = Log(log, num_experts=num_experts, progress=watcher.advance)
    check = CaptureCheck()
    with new_trace(path, overwrite=overwrite) as target, writing(target) as file:
        for rows in entries.batches():
            check.add(rows)
            file.write([rows])
        findings = not_empty(check, str(log))
        file.close(metadata(checkpoint=checkpoint, layers=list(entries.layers), data=data))
    unordered = [
        name
        for name, shared in entries.layers.items()
        if not is_ordered(top_k=shared["top_k"], ordered_by=shared["ordered_by"])
    ]
    size = path.stat().st_size
    return ImportedTrace(
        path, len(entries.requests), list(entries.layers), entries.num_tokens, size, findings, unordered
    )
