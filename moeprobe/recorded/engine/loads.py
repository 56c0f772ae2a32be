"""How often each expert is chosen by the requests of each fold: what the busiest experts elsewhere are read off."""

from collections.abc import Mapping, Sequence

import numpy as np

from moeprobe.metrics.stats.statistic import Integers
from moeprobe.recorded.engine.folds import NUM_FOLDS, without_fold
from moeprobe.recordings.reading import TraceFile

# Choices of one layer that are read at a time.
_CHOICES = 2**22


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
    longest = max(
        int(trace.num_tokens(layer, ids).max(initial=1)) * trace.layers[layer].top_k for layer in layers
    )
    size = max(_CHOICES // max(longest, 1), 1)
    counts = {name: np.zeros((NUM_FOLDS, trace.layers[name].num_experts), dtype=np.int64) for name in layers}
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        fold = np.array([folds[name] for name in part])
        for name in layers:
            block = trace.read(name, part)
            prefix, num_experts = block.layer.num_prefix_tokens, block.layer.num_experts
            experts = block.experts[:, prefix:]
            is_choice = (experts >= 0) & block.valid[:, prefix:, None]
            codes = (fold[:, None, None] * num_experts + experts)[is_choice]
            choice_counts = np.bincount(codes, minlength=counts[name].size)
            counts[name] += choice_counts.reshape(counts[name].shape)
    return {name: without_fold(of_layer) for name, of_layer in counts.items()}
