"""Traces of llama.cpp."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.recordings.count_table import TABLE, CountTable, captures_of
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader


class LlamaCpp(Reader):
    """llama.cpp's ``moe-trace``: a CSV ``layer,expert``, a line per choice; tokens are unknown, so only the load.

    A file is one input.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it is a table of choices."""
        table = response.get(TABLE)
        return isinstance(table, CountTable) and table.form == "choices"

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen."""
        return captures_of(response[TABLE], shape)
