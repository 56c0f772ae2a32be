"""Objects of Dynamo, SkyRL and prime-rl."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import (
    KEY,
    Capture,
    Reader,
    Stated,
    Weights,
    captures_of,
    choices,
    holders,
)
from moeprobe.recordings.routing_values import is_shaped, shaped_array


class Dynamo(Reader):
    """Dynamo, verifiers, prime-rl: ``routed_experts`` is an object of ``data`` (base64), ``shape`` and ``dtype``.

    Without ``dtype``, as verifiers sends it, the bytes of each number say its type.
    Of twice the width in int32, the second half is the bits of the experts' float32 weights: prime-rl's Total Router
    Recall (PrimeIntellect-ai/prime-rl#3523).
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether a value of the key has these keys; a choice's own null alone is vLLM's."""
        values = [fields[KEY] for fields in holders(response)]
        objects = [value for value in values if value is not None]
        if not objects:
            return bool(values) and not any(KEY in choice for choice in choices(response))
        return all(is_shaped(value) for value in objects)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice."""
        return captures_of(response, lambda value, tokens: _capture(value, tokens, shape))


def _capture(value: Any, tokens: Stated, shape: MoeShape) -> Capture:
    if value is None:
        return Capture(None)
    if not is_shaped(value):
        raise Fault(f"{KEY} takes an object of data, dtype and shape")
    numbers, start, dtype = shaped_array(value, "data")
    if dtype != "int32" or numbers.shape[2] != 2 * shape.top_k:
        return Capture(numbers, start=start, stated=tokens)
    ids, gates = numbers[..., : shape.top_k], numbers[..., shape.top_k :].view("<f4")
    if not np.isfinite(gates).all() or (gates < 0).any():
        raise Fault(
            "the second half of data, weights of experts, holds numbers that are below 0 or not finite"
        )

    def weights(of: int, experts: NDArray[np.int16]) -> Weights:
        layer = shape.sparse[of] if ids.shape[1] == shape.num_layers else of
        # Rows before the start have no expert, and experts may stand in another order than they were sent in.
        chosen = experts[start:, :, None]
        is_same = (chosen == ids[:, layer, None, :]) & (chosen >= 0)
        gate = np.zeros(experts.shape, np.float32)
        gate[start:] = np.take_along_axis(gates[:, layer], is_same.argmax(-1), -1) * is_same.any(-1)
        return Weights(gate, gate)

    return Capture(ids, start=start, stated=tokens, weights=weights)
