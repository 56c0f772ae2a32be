"""The work of ``trace locality``: how experts are used again along sequences, and how many several tokens touch.

Axes: B sequences, J tokens after the prefix, K choices of a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.distinct_experts import DistinctExperts
from moeprobe.metrics.analyses.next_token import NextToken
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.recorded.engine.input_sums import InputSums
from moeprobe.recorded.engine.work import TracesWork
from moeprobe.recorded.locality import Locality
from moeprobe.recordings.pairs import NamedTrace, check_tokens, name_all
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.runtime.progress import Progress

# What the tables call every recording: they are compared with each other, whatever was recorded.
_VIEW = "recorded"
# Tokens of the longest windows.
LONGEST_WINDOW = 4096


class Reuse(TracesWork[Locality]):
    """Traces of sequences, each measured by itself; the others are paired with the first by request."""

    def name_traces(self, files: Sequence[TraceFile]) -> list[NamedTrace]:
        """Return the traces, each with a name of its own."""
        return _name_traces(files)

    def check(self, files: Sequence[TraceFile]) -> None:
        """Raise ``UserError`` where a trace has no tokens that follow one another."""
        for trace in files:
            check_tokens(trace, purpose="that follow one another")
            for layer in self.layers:
                check_layer(trace, layer)

    def changed_request(self) -> dict[str, Any]:
        """Return what all recordings are called, whatever was recorded."""
        return {"view": {"name": _VIEW}, "severities": [], "aligned": True}

    def measure(self, progress: Progress) -> tuple[SumsStore, None]:
        """Return the sums per request, of all tokens."""
        return _SequenceSums(self.traces, self.layers, self.ids).sums(progress, self.division), None

    def notes(self) -> list[str]:
        """Return sentences on requests that not all traces have, and on tokens whose part is not known."""
        notes = [
            f"{len(trace_view.trace.ids) - len(self.ids):,} of the {len(trace_view.trace.ids):,} requests of "
            f"{trace_view.name}, which not all of the traces have"
            for trace_view in self.traces
            if len(trace_view.trace.ids) > len(self.ids)
        ]
        unmarked = [trace_view.name for trace_view in self.traces if not trace_view.trace.marks("generated")]
        if unmarked:
            notes.append(f"prompt and generated tokens apart, which {' and '.join(unmarked)} does not mark")
        return notes


def _name_traces(traces: Sequence[TraceFile]) -> list[NamedTrace]:
    """Return the traces with a name of their own each, so that the others are compared with the first."""
    trace_views = name_all(traces)
    names = [trace_view.name for trace_view in trace_views]
    return [
        replace(
            trace_view,
            name=trace_view.name if names.count(trace_view.name) == 1 else trace_view.label,
            view=_VIEW,
            severity=float("nan"),
        )
        for trace_view in trace_views
    ]


def check_layer(trace: TraceFile, name: str) -> None:
    """Raise ``UserError`` where a layer has no sequences of tokens that choose some of several experts."""
    layer = trace.layers[name]
    if layer.grid_rows is not None:
        raise UserError(
            f"{trace.path} holds patches of images, which have no next token; record texts or import a server's log."
        )
    if layer.experts_choose or not 0 < layer.top_k < layer.num_experts:
        raise UserError(
            f"In {name} of {trace.path} tokens do not choose some of several experts, so none is used again; leave the "
            f"layer out with {option('layers')}."
        )


class _SequenceSums(InputSums):
    """The sums per request of every trace."""

    def __init__(self, traces: Sequence[NamedTrace], layers: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__(traces, layers, ids, lists=trial_lists([NextToken()]))
        self._marked = [trace_view.trace.marks("generated") for trace_view in traces]

    def cell_of(self, trace_view: NamedTrace, cell: Cell) -> Cell:
        """Return the cell with the view of all recordings; its severity is the size of windows."""
        return replace(cell, view=_VIEW)

    def numbers_of_input(self) -> int:
        """Return how many numbers the sums of the longest request hold: choices, and experts by size of windows."""
        layers = self.traces[0].trace.layers
        return (1 + len(PARTS)) * sum(
            longest * layers[layer].top_k + len(_sizes(longest)) * layers[layer].num_experts
            for layer, longest in self.num_tokens.items()
        )

    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some requests for each trace: reuse, then distinct experts by the size of windows."""
        sums_of_traces: list[dict[Cell, dict[str, Tensor]]] = []
        for trace_view, is_marked in zip(self.traces, self._marked, strict=True):
            sums: dict[Cell, dict[str, Tensor]] = {}
            for name, longest in self.num_tokens.items():
                block = trace_view.trace.read(name, ids, num_tokens=longest)
                for kind, sequences in _kinds(block, is_marked=is_marked):
                    cell = Cell(layer=name, router=block.layer.router, top_k=block.layer.top_k, tokens=kind)
                    sums[cell] = NextToken().sums(sequences)
                    for size in _sizes(longest - block.layer.num_prefix_tokens):
                        sums[replace(cell, severity=float(size))] = DistinctExperts(size).sums(sequences)
            sums_of_traces.append(sums)
        return sums_of_traces


def _sizes(longest: int) -> list[int]:
    """Return the tokens of windows: powers of two up to the longest sequence."""
    return [2**power for power in range(min(longest, LONGEST_WINDOW).bit_length())]


def _kinds(block: Block, *, is_marked: bool) -> Iterator[tuple[str, Sequences]]:
    """Yield the sequences of all tokens after the prefix and, where tokens are marked, of either part.

    A token without any expert is as one that is not there.
    """
    prefix, num_experts = block.layer.num_prefix_tokens, block.layer.num_experts
    experts = torch.from_numpy(block.experts[:, prefix:])
    present = torch.from_numpy(block.valid[:, prefix:]) & (experts >= 0).any(-1)
    yield TEXT.token, Sequences(experts, present, num_experts)
    if is_marked:
        unknown = torch.full_like(present, -1, dtype=torch.int8)
        generated = unknown if block.generated is None else torch.from_numpy(block.generated[:, prefix:])
        for code, part in enumerate(PARTS):
            yield part, Sequences(experts, present & (generated == code), num_experts)
