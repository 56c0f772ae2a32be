"""How often each expert was chosen, where a server says no more: rows of a trace without tokens.

Axes: L layers (those with experts), E experts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.faults import BITS, bits_of_zeros
from moeprobe.recordings.log_rows import Fault, Row
from moeprobe.recordings.model_config import MoeShape


def counts_of(counts: NDArray[np.int64], shape: MoeShape) -> NDArray[np.int64]:
    """Return the counts ``(L, E)`` of the layers with experts.

    Args:
        counts: of all hidden layers, or of those with experts ``(?, ?)``.
        shape: the MoE layers of the model.

    Raises:
        Fault: they do not fit the model, or cannot be of what a router chose.
    """
    if counts.shape[1] != shape.num_experts or len(counts) not in (shape.num_layers, len(shape.sparse)):
        raise Fault(
            f"counts of {len(counts)} layers and {counts.shape[1]} experts; the model has {shape.num_layers} layers, "
            f"{len(shape.sparse)} of them with {shape.num_experts} experts"
            + (f"; {cause}" if (cause := shape.mtp_cause(len(counts))) else "")
        )
    if (counts < 0).any():
        raise Fault("a count below 0")
    if len(counts) == shape.num_layers:
        if counts[list(shape.dense)].any():
            cause = shape.mtp_cause(len(counts))
            raise Fault(
                f"layer {shape.dense[0]} is dense by the model's config.json, and has choices"
                + (f": {cause}" if cause else "")
            )
        counts = counts[list(shape.sparse)]
    total = counts.sum(1)
    if not total.all():
        raise Fault(f"{shape.names[int(np.argmin(total))]} has no choices: it was not captured")
    # A token chooses an expert once at most.
    odd = counts.max(1) * shape.top_k > total
    zeros = counts[:, 0].sum() == total.sum()
    if zeros and bits_of_zeros(int(total.sum()), 1, shape.top_k, shape.num_experts) >= BITS:
        raise Fault(
            "all choices are of expert 0: known as an all-zero capture, of kernels that do not record"
        )
    if odd.any():
        layer = int(np.argmax(odd))
        raise Fault(
            f"{shape.names[layer]}: expert {int(counts[layer].argmax())} has {counts[layer].max():,} of "
            f"{total[layer]:,} choices, more than one of {shape.top_k} for each token"
        )
    return counts


def rows_of_counts(
    name: str, counts: NDArray[np.int64], shape: MoeShape, shared: Mapping[str, Any]
) -> Iterator[Row]:
    """Yield a row per layer; ``shared``: what all rows of a layer have in common."""
    nothing = np.zeros((0, shape.top_k), np.int16)
    for layer, layer_counts in zip(shape.names, counts, strict=True):
        yield Row(
            id=name,
            layer=layer,
            layer_fields=dict(shared),
            experts=nothing,
            processed=nothing >= 0,
            valid=nothing[:, 0] >= 0,
            gates=None,
            all_gates=None,
            counts=layer_counts,
        )
