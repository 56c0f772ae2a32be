"""Importance matrices of llama.cpp."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.recordings.count_table import TABLE, CountTable, captures_of
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader


class Imatrix(Reader):
    """llama.cpp's and ik_llama.cpp's ``llama-imatrix``: GGUF with ``blk.N.ffn_up_exps.weight.counts``; load only.

    A file is one input.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it is a table of such counts."""
        table = response.get(TABLE)
        return isinstance(table, CountTable) and table.form == "imatrix"

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen."""
        return captures_of(response[TABLE], shape)
