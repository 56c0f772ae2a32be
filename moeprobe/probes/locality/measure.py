"""Measure how experts are used again along recorded sequences, and how many of them several tokens touch.

Axes: B sequences, J tokens after the prefix, K choices of a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.distinct_experts import DistinctExperts
from moeprobe.metrics.analyses.next_token import NextToken
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.probes.analyze_trace.describe import facts_of, request_of
from moeprobe.probes.analyze_trace.input_sums import InputSums
from moeprobe.probes.base import deferred
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import TableWork
from moeprobe.probes.locality import Locality
from moeprobe.recordings.matching import NAMES, check_match, match_traces
from moeprobe.recordings.pairs import NamedTrace, check_tokens, common_ids, common_layers, name_all
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import choose_names
from moeprobe.results.sums import Cell
from moeprobe.runtime.arguments import several
from moeprobe.runtime.progress import Progress, progress_of

# What the tables call every recording: they are compared with each other, whatever was recorded.
_VIEW = "recorded"
# Tokens of the longest windows.
LONGEST_WINDOW = 4096


@with_options
def trace_locality(
    paths: str | Path | Sequence[str | Path],
    *,
    match: str = NAMES,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure whether the next tokens of a sequence use the same experts, and how many experts several tokens touch.

    Each recording is measured with its own tokens. The differences of the others from the first one are paired by
    request.

    Args:
        paths: files of recorded sequences; the first is the reference.
        match: as in ``analyze_trace``.
        options: only ``layers``, ``names``, ``seed`` (of the intervals), ``out``, ``overwrite``, ``figures`` and
            ``svg``; ``changes`` are applied to them by name.
        watcher: receives the progress of the run.

    Raises:
        UserError: a file is damaged or no trace, it holds no sequences of tokens that choose, or two have no request in
            common.
    """
    check_match(match)
    files = [TraceFile(Path(path)) for path in several(paths)]
    work = _Locality(files, match=match, options=combine(options, changes))
    return work.execute(progress_of(watcher))


class _Locality(TableWork[Result]):
    """Traces of sequences, each measured by itself."""

    def __init__(self, files: Sequence[TraceFile], *, match: str, options: Options) -> None:
        if not files:
            raise UserError("Name at least one trace.")
        matched, self.matching = match_traces(files, match)
        self.traces, self.options = _name_traces(matched), options
        names = [trace_view.name for trace_view in self.traces]
        self.names = choose_names(options.names, names)
        self.layers = common_layers(matched, options.layers)
        for trace in matched:
            check_tokens(trace, purpose="that follow one another")
            for layer in self.layers:
                check_layer(trace, layer)
        self.ids = common_ids(matched, self.layers)
        self.request = request_of(self.traces, self.ids, options) | {
            "kind": Locality.kind, "view": {"name": _VIEW}, "analyses": list(Locality.analyses),
            "severities": [], "aligned": True,
        } | ({"match": match} if match != NAMES else {})  # fmt: skip

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the traces, and put the tables together."""
        progress.start(Locality.kind, len(self.ids))
        sums = _SequenceSums(self.traces, self.layers, self.ids).sums(progress)
        training = {trace_view.name: trace_view.trace.about["checkpoint"] for trace_view in self.traces}
        info = self.run_info(
            aligned=True,
            train_seeds={name: provenance.get("seed") for name, provenance in training.items()},
            groups={name: provenance.get("group") or "" for name, provenance in training.items()},
        )
        table, comparison = summarize(sums, analyses=make_analyses(Locality.analyses), run_info=info)
        sidecar = self.make_sidecar(
            notes=[*self._notes(), *self.matching],
            wall_seconds=self.seconds,
            **self.names,
            **facts_of(self.traces),
        )
        leading = partial(leading_sentences, layout=Locality.layout)
        drawing = deferred("moeprobe.probes.locality.figure:draw")
        return Result(table, comparison, sums, sidecar, drawing, leading)

    def _notes(self) -> list[str]:
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
