"""The load of a layer of a trace alone, where it or the trace beside it holds no more than counts of choices."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.load import Load
from moeprobe.probes.engine.batch_sums import sums_of_layer
from moeprobe.results.sums import Cell
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.traces.reading import TraceFile
from moeprobe.routing.traces.rows import to_routing


def load_of(trace: TraceFile, name: str, ids: Sequence[str]) -> dict[Cell, dict[str, Tensor]]:
    """Return the sums of the load of a layer in some inputs of one trace."""
    layer = trace.layers[name]
    if not layer.load_only:
        routing = to_routing(trace.read(name, ids))
        # Counts are of all choices: only those of this side can be held against them.
        routing = replace(routing, ordered=routing.top_k < 2)
        patches = torch.arange(routing.selected.shape[1] - routing.num_prefix_tokens).expand(len(ids), -1)
        return sums_of_layer([Load()], name, LayerPair(routing, routing, patches, patches, aligned=True))
    if layer.num_experts < 2:
        return {}
    counts = torch.tensor(trace.counts(name, ids))
    cell = Cell(layer=name, router=layer.router, top_k=layer.top_k, tokens=TEXT.token)
    return {cell: Load.sums_of_counts(counts, top_k=layer.top_k)}
