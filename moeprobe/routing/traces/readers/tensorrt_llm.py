"""Outputs of TensorRT-LLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.routing.traces.model_config import MoeShape
from moeprobe.routing.traces.readers.base import KEY, Capture, Reader, Stated, listed
from moeprobe.routing.traces.readers.vllm import nested


class TensorrtLlm(Reader):
    """TensorRT-LLM: nested lists in ``outputs[i].routed_experts`` of a request's outputs, written as JSON."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether outputs have the key."""
        return any(KEY in one for one in listed(response, "outputs"))

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each output; token ids beside it say how many rows are due."""
        prompt = _length(response.get("prompt_token_ids"))
        return [
            Capture(None)
            if one.get(KEY) is None
            else Capture(nested(one[KEY], KEY), stated=Stated(prompt, _length(one.get("token_ids"))))
            for one in listed(response, "outputs")
        ]


def _length(ids: Any) -> int | None:
    return len(ids) if isinstance(ids, list) else None
