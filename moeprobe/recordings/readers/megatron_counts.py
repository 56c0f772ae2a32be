"""Tokens per expert that Megatron-LM counts during training."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.count_table import (
    CountTable,
    TableBuilder,
    captures_of,
    concat_tables,
    whole_numbers,
)
from moeprobe.recordings.log_rows import Fault, as_array, faults_at
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, check_all_sparse, whole_number
from moeprobe.recordings.responses import GatheredResponse

_KEYS = {"iter", "layer", "tpe"}
_RANKS, _WIDTH, _MTP = "ranks", "experts_per_rank", "mtp_lines"
_RANK = re.compile(r"rank(\d{1,9})")


class MegatronCounts(Reader):
    """Megatron-LM's ``tokens_per_expert/rank0.jsonl``: ``tpe`` of each iteration and layer; load only.

    An iteration is an input, its micro-batches added up. So are the files of several ranks: each counts what its own
    experts got. With expert parallelism, give one file for each rank that holds other experts.
    """

    joins_files = True

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it is a line, or several files that were put together."""
        return response.keys() >= _KEYS or _RANKS in response

    def joined(
        self, files: Sequence[tuple[Path, Iterator[tuple[str, Any]]]]
    ) -> Iterator[tuple[Path, str, Any]]:
        """Yield the tables of all ranks as one response."""
        ranks = [_read_rank(path, lines) for path, lines in files]
        order = sorted(range(len(files)), key=lambda index: _rank_of(files[index][0], index))
        tables = [ranks[index][0] for index in order]
        paths = [files[index][0] for index in order]
        for path, table, previous in zip(paths[1:], tables[1:], paths, strict=False):
            if odd := table.layers_of_windows() ^ tables[0].layers_of_windows():
                window, layer = min(odd)
                raise UserError(
                    f"{path} and {previous} differ in their lines: only one has layer {layer} of {window}. Give files "
                    "of one training, all of the same iterations."
                )
        widths = {width for _, width, _ in ranks}
        if len(widths) > 1:
            raise UserError(f"{paths[0]} and the other files count different numbers of experts.")
        response = {_RANKS: tables, _WIDTH: widths.pop(), _MTP: sum(mtp for _, _, mtp in ranks)}
        yield paths[0], "the file", GatheredResponse(response)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen in each iteration."""
        if not isinstance(response, GatheredResponse):
            raise Fault("a line of tokens per expert stands among others")
        tables, width = response[_RANKS], response[_WIDTH]
        if width == shape.num_experts:
            shifts = [0] * len(tables)
        elif width * len(tables) == shape.num_experts:
            shifts = [width * index for index in range(len(tables))]
        else:
            raise Fault(
                f"tpe counts {width} experts in each of {len(tables)} files, and the model has {shape.num_experts}; "
                "with expert parallelism, give one file for each rank that holds other experts"
            )
        table = concat_tables(tables, shifts)
        check_all_sparse(np.unique(table.layer).tolist(), shape)
        return captures_of(table, shape, left_out=response[_MTP])


def _read_rank(path: Path, lines: Iterator[tuple[str, Any]]) -> tuple[CountTable, int, int]:
    """Return the counts in the file of a rank, the experts in each line, and the lines of multi-token prediction."""
    builder = TableBuilder(adds=False)
    width, mtp, where = 0, 0, "the file"
    for where, line in lines:
        with faults_at(path, where):
            if not isinstance(line, dict) or not line.keys() >= _KEYS:
                raise Fault(f"this is no line of tokens per expert, with {', '.join(sorted(_KEYS))}")
            if line.get("block", "decoder") != "decoder":
                mtp += 1
                continue
            iteration, layer = (whole_number(line, name) for name in ("iter", "layer"))
            counts = _of_micro_batches(line["tpe"])
            if width not in (0, len(counts)):
                raise Fault(f"tpe counts {len(counts)} experts, and {width} in the lines before")
            width = len(counts)
            builder.add(builder.window(f"iter{iteration}"), layer, np.arange(width), counts)
    with faults_at(path, where):
        return builder.table("tpe"), width, mtp


def _of_micro_batches(value: Any) -> NDArray[np.int64]:
    """Return counts ``(E,)`` of all micro-batches of an iteration."""
    counts = as_array(value)
    if counts.ndim != 2 or not counts.size:
        raise Fault("tpe takes for each micro-batch a list of counts, all of the same length")
    return whole_numbers(counts).sum(0)


def _rank_of(path: Path, index: int) -> tuple[int, int]:
    """Return what orders files by their ranks, those without a number last."""
    match = _RANK.search(path.stem)
    return (int(match[1]) if match else 2**31, index)
