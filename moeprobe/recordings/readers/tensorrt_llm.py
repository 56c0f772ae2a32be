"""Outputs of TensorRT-LLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import KEY, Capture, Reader, Stated, objects_under
from moeprobe.recordings.readers.vllm import nested_array


class TensorrtLlm(Reader):
    """TensorRT-LLM: nested lists in ``outputs[i].routed_experts`` of a request's outputs, written as JSON."""

    also = "vLLM's class LLM"

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether outputs have the key."""
        return any(KEY in output for output in objects_under(response, "outputs"))

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each output; token ids beside it say how many rows to expect."""
        prompt = _length(response.get("prompt_token_ids"))
        return [
            Capture(None)
            if output.get(KEY) is None
            else Capture(
                nested_array(output[KEY], KEY), stated=Stated(prompt, _length(output.get("token_ids")))
            )
            for output in objects_under(response, "outputs")
        ]


def _length(ids: Any) -> int | None:
    return len(ids) if isinstance(ids, list) else None
