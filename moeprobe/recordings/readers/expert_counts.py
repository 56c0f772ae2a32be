"""Counts per layer and expert, in the layouts of several programs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprobe.recordings.count_layouts import is_layout, read_layouts
from moeprobe.recordings.count_table import TABLE, CountTable, captures_of
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader
from moeprobe.recordings.responses import GatheredResponse

FORM = "counts"


class ExpertCounts(Reader):
    """Counts of layers and experts: CSV (SGLang, EPLB), JSON (LMDeploy, DLBlas, tt-metal) or torch (LMDeploy).

    Load only. Each step, or each line or list entry of JSON, is an input; without these, a rank or a file is one.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it has such a layout, or is a table of counts."""
        table = response.get(TABLE)
        return table.form == FORM if isinstance(table, CountTable) else is_layout(response)

    def gathered(self, lines: Iterator[tuple[str, Any]], path: Path) -> Iterator[tuple[str, Any]]:
        """Yield one table of all lines of a file."""
        first = next(lines, None)
        if first is None or (isinstance(first[1], dict) and isinstance(first[1].get(TABLE), CountTable)):
            yield from [] if first is None else [first]
            return
        yield "the file", GatheredResponse({TABLE: read_layouts(_with(first, lines), path)})

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen in each window."""
        table = response.get(TABLE)
        if not isinstance(table, CountTable):
            raise Fault("an object with counts stands among others")
        return captures_of(table, shape)


def _with(first: tuple[str, Any], lines: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield first
    yield from lines
