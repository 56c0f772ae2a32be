"""The passes that show which choices of experts the arithmetic of narrower passes changes by itself."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.probes.base import CLEAN
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.precision_floor import changed_share
from moeprobe.routing.pass_precision import in_float32
from moeprobe.routing.record import LayerRouting


def clean_inputs(spec: RunSpec, checkpoint: Checkpoint, count: int) -> Iterator[Any]:
    """Yield the first ``count`` unperturbed inputs of a run, batch by batch."""
    clean = dataclasses.replace(spec, view=None, view_name=CLEAN, severities=(), shard=None)
    for batch in readable_batches(load_batches(clean, checkpoint, spec.indices[:count]), [], None):
        yield batch.views[0]


def measure_floor(checkpoint: Checkpoint, inputs: Iterable[Any], layers: Sequence[str]) -> dict[str, Any]:
    """Return the share of choices that differ from passes in float32, of all layers and of each.

    Layers in which nothing is chosen are left out.
    """
    narrow, wide = checkpoint.model, in_float32(checkpoint.model)
    counts: dict[str, list[NDArray[np.int64]]] = {}
    for batch in inputs:
        routings = [model.trace(batch, layers=layers, logits=False)[1].layers for model in (wide, narrow)]
        for name in layers:
            first, second = (routing[name] for routing in routings)
            if first.top_k > 0:
                counts.setdefault(name, []).append(_count_changes(first, second))
    by_layer = {name: np.concatenate(parts) for name, parts in counts.items()}
    num_inputs = max(map(len, by_layer.values()), default=0)
    total = sum(by_layer.values(), np.zeros((num_inputs, 2), np.int64))
    return changed_share(*total.T) | {
        "inputs": checkpoint.framing.modality.plural,
        "layers": {name: changed_share(*table.T) for name, table in by_layer.items()},
    }


def _count_changes(first: LayerRouting, second: LayerRouting) -> NDArray[np.int64]:
    """Return how many tokens of each input have other experts, and of how many: ``(B, 2)``."""
    tokens = first.valid.clone()
    tokens[:, : first.num_prefix_tokens] = False
    changed = ~first.selects_the_same(second) & tokens
    return np.stack([changed.sum(1).cpu().numpy(), tokens.sum(1).cpu().numpy()], axis=1)
