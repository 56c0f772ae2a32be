"""Raw bfloat16 logits beside a router trace of Megatron-LM, made gates.

Axes: T tokens, K choices, E experts.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.packed import array_of, is_packed, unpacked_layers
from moeprobe.recordings.readers.base import Weights
from moeprobe.runtime.files import is_file, open_regular


class Logits:
    """Logits of one rank.

    Args:
        folder: of the trace.
        rank: which one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"logits_rank{rank}.bin"
        self._state = folder / f"router_state_rank{rank}.pt"

    def weights(self, line: Mapping[str, Any], experts: NDArray[np.int16], shape: MoeShape) -> Weights:
        """Return gates of a line's ``(T, K)`` experts and of all; the softmax, unless sigmoid is said.

        Raises:
            Fault: the logits are missing, or do not fit the line.
        """
        logits = self._read(line, (len(experts), shape.num_experts))
        function, bias = self._router(line["layer"], shape)
        if function == "sigmoid":
            gates = 1 / (1 + np.exp(-logits))
        else:
            gates = np.exp(logits - logits.max(-1, keepdims=True))
            gates /= gates.sum(-1, keepdims=True)
        scores = logits if bias is None else gates + bias
        indices = experts.astype(np.int64).clip(0)
        chosen_scores = np.take_along_axis(scores, indices, -1)
        other_scores = scores.copy()
        np.put_along_axis(other_scores, indices, -np.inf, -1)
        lower = (
            int((chosen_scores.min(-1) < other_scores.max(-1)).sum())
            if shape.top_k < shape.num_experts
            else 0
        )
        of_chosen = np.take_along_axis(gates, indices, -1).astype(np.float32)
        of_chosen[experts < 0] = 0
        return Weights(
            of_chosen,
            chosen_scores.astype(np.float32),
            ordered_by="gates" if bias is None else "scores",
            all_gates=gates.astype(np.float32),
            sum_to_one=function != "sigmoid",
            lower=lower,
        )

    def _read(self, line: Mapping[str, Any], shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return the logits of a line ``(T, E)``."""
        offset, size = line.get("logit_offset"), line.get("logit_bytes")
        is_located = type(offset) is int and 0 <= offset < 2**63 and line.get("logit_shape") == list(shape)
        if not is_located or size != 2 * shape[0] * shape[1]:
            raise Fault(
                f"logit_offset, logit_bytes and logit_shape do not fit {shape[0]} tokens and {shape[1]} experts "
                "in bfloat16"
            )
        if not is_file(self._path):
            raise Fault(f"its logits are in {self._path.name}, which is not beside it; copy it there")
        with open_regular(self._path) as file:
            file.seek(offset)
            content = file.read(size)
        if len(content) != size:
            raise Fault(f"{self._path.name} ends before the logits at {offset:,}: it is truncated")
        values = (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        if not np.isfinite(values).all():
            raise Fault(f"{self._path.name} holds logits that are no finite numbers")
        return values

    def _router(self, layer: Any, shape: MoeShape) -> tuple[str, NDArray[np.float32] | None]:
        """Return the function from logits to gates, and the bias added to them before the choice."""
        state = self._states.get(layer)
        if not isinstance(state, dict):
            return shape.scoring, None
        function, bias = state.get("score_function") or "softmax", state.get("expert_bias")
        if function not in ("softmax", "sigmoid"):
            raise Fault(
                f"{self._state.name}: score_function is {str(function)[:40]}, and neither softmax nor sigmoid"
            )
        if bias is None:
            return function, None
        values = array_of(bias, "expert_bias", kinds="f", dims=1).astype(np.float32)
        if len(values) != shape.num_experts or not np.isfinite(values).all():
            raise Fault(f"{self._state.name}: expert_bias takes {shape.num_experts} finite numbers")
        return function, values if values.any() else None

    @cached_property
    def _states(self) -> Mapping[Any, Any]:
        """What routers are, by layer; nothing where it was not saved."""
        if not is_file(self._state):
            return {}
        with open_regular(self._state) as file:
            packed = is_packed(file.peek(4))
        if not packed:
            raise UserError(f"{self._state} is no file that torch.save wrote.")
        return unpacked_layers(self._state)
