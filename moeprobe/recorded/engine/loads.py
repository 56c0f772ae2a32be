"""How often each expert is chosen by the requests of each fold: what the busiest experts elsewhere are read off."""

from collections.abc import Mapping, Sequence

import numpy as np

from moeprobe.metrics.stats.statistic import Integers
from moeprobe.recorded.engine.folds import NUM_FOLDS, without_fold
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.runtime.processes import spread, usable

# Choices of all layers that are read at a time: rows of some inputs lie together, whatever their layers.
_CHOICES = 2**23
# Parts that one process counts before others would have started.
_OF_ONE_PROCESS = 2


def loads_elsewhere(
    trace: TraceFile, layers: Sequence[str], ids: Sequence[str], folds: Mapping[str, int]
) -> dict[str, Integers]:
    """Return by layer how often the other folds chose each expert ``(F, E)``.

    Args:
        trace: the recording.
        layers: their names.
        ids: inputs that are counted.
        folds: of each input.
    """
    of_input = sum(
        int(trace.num_tokens(layer, ids).max(initial=1)) * trace.layers[layer].top_k for layer in layers
    )
    size = max(_CHOICES // max(of_input, 1), 1)
    starts = range(0, len(ids), size)

    def count(part: int) -> list[Integers]:
        names = ids[starts[part] : starts[part] + size]
        fold = np.array([folds[name] for name in names])
        return [_counts_by_fold(trace.read(layer, names), fold) for layer in layers]

    counts = [np.zeros((NUM_FOLDS, trace.layers[layer].num_experts), dtype=np.int64) for layer in layers]
    for of_part in spread(count, len(starts), processes=usable() if len(starts) > _OF_ONE_PROCESS else 1):
        counts = [total + of_layer for total, of_layer in zip(counts, of_part, strict=True)]
    return {layer: without_fold(total) for layer, total in zip(layers, counts, strict=True)}


def _counts_by_fold(block: Block, fold: Integers) -> Integers:
    """Return how often the inputs of a block, whose folds are ``(n,)``, chose each expert ``(F, E)``."""
    prefix, num_experts = block.layer.num_prefix_tokens, block.layer.num_experts
    experts = block.experts[:, prefix:]
    # Choices that do not count have a place of their own, behind the experts.
    codes = np.where((experts >= 0) & block.valid[:, prefix:, None], experts, np.int16(num_experts))
    codes = codes + fold[:, None, None] * (num_experts + 1)
    counts = np.bincount(codes.ravel(), minlength=NUM_FOLDS * (num_experts + 1))
    return counts.reshape(NUM_FOLDS, -1)[:, :-1]
