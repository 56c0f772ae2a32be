"""What questions to sequences of recorded tokens share: which traces they take, and how tables name them.

Axes: B sequences, J tokens after the prefix, K choices of a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.declarations.recording_probe import MatchedTraces
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import IMAGE, TEXT
from moeprobe.metrics.sequences import Sequences
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.recorded.engine.work import TracesWork
from moeprobe.recordings.pairs import NamedTrace, check_tokens, name_all
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.results.folder import Result

# What the tables call every recording: they are compared with each other, whatever was recorded.
RECORDED = "recorded"
Q = TypeVar("Q", bound=MatchedTraces[Result])


class SequencesWork(TracesWork[Q]):
    """Traces of sequences, each measured by itself; the others are paired with the first by request."""

    def name_traces(self, files: Sequence[TraceFile]) -> list[NamedTrace]:
        """Return the traces with a name of their own each, so that the others are compared with the first."""
        trace_views = name_all(files)
        names = [trace_view.name for trace_view in trace_views]
        return [
            replace(
                trace_view,
                name=trace_view.name if names.count(trace_view.name) == 1 else trace_view.label,
                view=RECORDED,
                severity=float("nan"),
            )
            for trace_view in trace_views
        ]

    def check(self, files: Sequence[TraceFile]) -> None:
        """Raise ``UserError`` where a trace has no tokens that follow one another."""
        for trace in files:
            check_tokens(trace, purpose="that follow one another")
            for layer in self.layers:
                check_layer(trace, layer)

    def changed_request(self) -> dict[str, Any]:
        """Return what all recordings are called, whatever was recorded."""
        return {"view": {"name": RECORDED}, "severities": [], "aligned": True}

    def notes(self) -> list[str]:
        """Return sentences on requests that not all traces have."""
        return [
            f"{len(trace_view.trace.ids) - len(self.ids):,} of the {len(trace_view.trace.ids):,} requests of "
            f"{trace_view.name}, which not all of the traces have"
            for trace_view in self.traces
            if len(trace_view.trace.ids) > len(self.ids)
        ]

    def unmarked(self) -> list[str]:
        """Return a sentence on traces that do not say which tokens were generated; none where all do."""
        names = [trace_view.name for trace_view in self.traces if not trace_view.trace.marks("generated")]
        if not names:
            return []
        verb = "does" if len(names) == 1 else "do"
        return [f"prompt and generated tokens apart, which {' and '.join(names)} {verb} not mark"]


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


def have_same_tokens(trace: TraceFile, layers: Sequence[str]) -> bool:
    """Whether layers have the same tokens of each input: an encoder's are not those of the decoder behind it."""
    first, *remaining = layers
    counts, prefix = trace.num_tokens(first, trace.ids), trace.layers[first].num_prefix_tokens
    return all(
        trace.layers[name].num_prefix_tokens == prefix
        and bool((trace.num_tokens(name, trace.ids) == counts).all())
        for name in remaining
    )


def kind_of_tokens(trace: TraceFile) -> str:
    """Return what the tokens of a recording are called: patches where all of its layers have a grid, else a text's."""
    has_grids = all(layer.grid_rows is not None for layer in trace.layers.values())
    return IMAGE.token if has_grids else TEXT.token


def tokens_of(block: Block) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Return the experts ``(B, J, K)`` of the tokens after the prefix, and which are present ``(B, J)``.

    A token without any expert is as one that is not there.
    """
    prefix = block.layer.num_prefix_tokens
    experts = block.experts[:, prefix:]
    return experts, block.valid[:, prefix:] & (experts >= 0).any(-1)


def kinds_of(block: Block, *, is_marked: bool) -> Iterator[tuple[str, Sequences]]:
    """Yield the sequences of all tokens after the prefix and, where tokens are marked, of either part."""
    choices, is_present = tokens_of(block)
    experts, num_experts = torch.from_numpy(choices), block.layer.num_experts
    all_tokens = Sequences(experts, torch.from_numpy(is_present), num_experts)
    yield TEXT.token, all_tokens
    if is_marked:
        generated = block.generated
        if generated is not None:
            generated = generated[:, block.layer.num_prefix_tokens :]
        for code, part in enumerate(PARTS):
            present = np.zeros_like(is_present) if generated is None else is_present & (generated == code)
            yield part, Sequences(experts, torch.from_numpy(present), num_experts, all_tokens)
