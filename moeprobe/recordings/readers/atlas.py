"""Traces of MoE Atlas."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, Tokens, token_array
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, Weights

_KEYS = {"model_id", "num_layers", "top_k", "activations"}
_OF_ONE = ("layer", "token_idx", "expert_idx", "gate_weight")


class Atlas(Reader):
    """MoE Atlas: ``activations`` lists ``layer``, ``token_idx``, ``expert_idx`` and ``gate_weight`` of each choice."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it has the keys of a trace."""
        return response.keys() >= _KEYS

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of the text; gates are weights of chosen experts, by which they are ordered."""
        if response["top_k"] not in (0, shape.top_k):
            raise Fault(
                f"top_k is {str(response['top_k'])[:40]}, and num_experts_per_tok of the model is {shape.top_k}"
            )
        layer, token, expert, weight = _columns(response["activations"])
        indices = np.full(shape.num_layers, -1)
        indices[list(shape.sparse)] = range(len(shape.sparse))
        odd = (layer >= shape.num_layers) | (indices[layer.clip(0, shape.num_layers - 1)] < 0)
        if odd.any():
            raise Fault(f"layer {layer[odd][0]} has experts, and has none by the model's config.json")
        _check(expert, "expert_idx", shape.num_experts, "experts of the model")
        sequence = _sequence(response)
        count = len(sequence.ids) if sequence else _count(response, len(layer), shape)
        _check(token, "token_idx", count, "tokens of the text")
        index = indices[layer]
        order = np.lexsort((np.arange(len(layer)), index, token))
        index, token, expert, weight = index[order], token[order], expert[order], weight[order]
        cell = token * len(shape.sparse) + index
        rank = np.arange(len(cell)) - np.searchsorted(cell, cell)
        if (rank >= shape.top_k).any():
            raise Fault(
                f"a token has more than {shape.top_k} experts in a layer, num_experts_per_tok of the model"
            )
        ids = np.full((count, len(shape.sparse), shape.top_k), -1, np.int32)
        ids[token, index, rank] = expert
        gates = np.zeros(ids.shape, np.float32)
        gates[token, index, rank] = weight

        def weights(of: int, experts: NDArray[np.int16]) -> Weights:
            same = experts[:, :, None] == ids[:, of, None, :]
            gate = (gates[:, of, None, :] * (same & (experts >= 0)[:, :, None])).sum(-1)
            return Weights(gate, gate)

        return [Capture(ids, tokens=sequence, weights=weights)]


def _columns(
    activations: Any,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return layers, tokens, experts and weights ``(N,)``."""
    is_valid = isinstance(activations, list) and all(isinstance(entry, dict) for entry in activations)
    if not is_valid:
        raise Fault("activations takes a list of objects")
    columns = []
    for name in _OF_ONE:
        values = [activation.get(name) for activation in activations]
        kinds = (int, float) if name == "gate_weight" else (int,)
        if not all(type(value) in kinds and 0 <= value < 2**31 and math.isfinite(value) for value in values):
            raise Fault(f"activations: {name} takes numbers from 0 up, one in each object")
        columns.append(np.array(values, np.float32 if name == "gate_weight" else np.int64))
    return tuple(columns)  # type: ignore[return-value]


def _check(values: NDArray[np.int64], name: str, size: int, what: str) -> None:
    if (values >= size).any():
        raise Fault(f"{name} is {values.max()}, and there are {size} {what}")


def _sequence(response: Mapping[str, Any]) -> Tokens | None:
    """Return the text's tokens, all of them the prompt's; None where their ids are not given."""
    if not response.get("token_ids"):
        return None
    ids = token_array(response["token_ids"], "token_ids")
    return Tokens(ids, len(ids))


def _count(response: Mapping[str, Any], choices: int, shape: MoeShape) -> int:
    """Return how many tokens there are: those in words, or as many as there are choices."""
    words = response.get("token_strs")
    if isinstance(words, list) and words:
        return len(words)
    return -(-choices // (len(shape.sparse) * shape.top_k))
