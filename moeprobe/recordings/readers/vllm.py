"""Responses of vLLM."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, as_array
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import (
    KEY,
    NPY,
    Capture,
    Reader,
    Stated,
    choices,
    decode_base64,
    npy,
    stated,
)

_PROMPT = "prompt_routed_experts"


class Vllm(Reader):
    """vLLM: ``choices[i].routed_experts``, base64 of an .npy file, or nested lists."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether choices have the key, with null, nested lists or an .npy file."""
        values = [choice[KEY] for choice in choices(response) if KEY in choice]
        return bool(values) and all(
            value is None or isinstance(value, list) or (isinstance(value, str) and value.startswith(NPY))
            for value in values
        )

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice; lists have the prompt's rows once, beside the choices."""
        listed = choices(response)
        tokens = stated(response.get("usage"), several=len(listed) > 1)
        return [self._capture(choice.get(KEY), response, tokens) for choice in listed]

    def _capture(self, value: Any, response: Mapping[str, Any], tokens: Stated) -> Capture:
        if value is None:
            return Capture(None)
        if isinstance(value, str):
            return Capture(
                npy(decode_base64(value, KEY), KEY, axes="tokens, layers and experts per token"),
                stated=tokens,
                ends_together=True,
            )
        experts = nested_array(value, KEY)
        if _PROMPT not in response:
            return Capture(experts, last=True, stated=tokens)
        if response[_PROMPT] is None:
            prompt = tokens.prompt
            if prompt is None:
                raise Fault(
                    f"{_PROMPT} is null and usage.prompt_tokens missing, so nothing says where rows begin"
                )
            return Capture(experts, start=prompt, last=True, stated=tokens)
        before = nested_array(response[_PROMPT], _PROMPT)
        parts = [part for part in (before, experts) if len(part)] or [experts]
        if len({part.shape[1:] for part in parts}) > 1:
            raise Fault(f"{_PROMPT} and {KEY} differ in layers or experts per token")
        return Capture(np.concatenate(parts), last=True, stated=tokens)


def nested_array(value: Any, what: str) -> NDArray[Any]:
    """Return nested lists of tokens, layers and experts as an array."""
    numbers = as_array(value)
    if numbers.shape == (0,):
        return np.zeros((0, 0, 0), np.int64)
    if numbers.ndim != 3 or numbers.dtype.kind != "i":
        raise Fault(f"{what} takes for each token and layer a list of experts, all of the same length")
    return numbers
