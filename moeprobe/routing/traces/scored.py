"""Log-probabilities of generated tokens in responses of inference servers, where they are asked for.

vLLM and OpenAI-like servers: ``logprobs.token_logprobs`` or ``logprobs.content[i].logprob`` of a choice; SGLang:
``meta_info.output_token_logprobs``, lists that begin with the number; slime and verl: ``rollout_log_probs`` of a sample
or a batch.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.log_rows import Fault
from moeprobe.routing.traces.readers.base import choices, listed
from moeprobe.routing.traces.responses import Gathered, responses
from moeprobe.routing.traces.token_ids import named_sequences, reader_of


def read_log_probabilities(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return by request the log-probability of each generated token ``(T,)``, NaN where there is none.

    Names are those of ``token_ids.read_sequences``. A request without log-probabilities is passed over.

    Raises:
        UserError: the file cannot be read, holds other things than numbers, or none at all.
    """
    found: dict[str, NDArray[np.float32]] = {}
    for where, response in responses(path, progress=lambda count: None):
        try:
            if not isinstance(response, dict):
                raise Fault("a response is due, a JSON object")
            own = _of_response(response)
            for (name, tokens), values in zip(
                named_sequences(response, f"{path.name}:{where.removeprefix('line ')}"), own, strict=False
            ):
                if values is None or tokens is None:
                    continue
                generated = len(tokens.ids) - tokens.prompt
                if len(values) != generated:
                    raise Fault(
                        f"{name} has {generated} generated tokens, and {len(values)} log-probabilities"
                    )
                found[name] = values
        except Fault as fault:
            raise UserError(f"{path}, {where}: {fault}.") from None
    if not found:
        raise UserError(
            f"{path} holds no log-probabilities of generated tokens; ask the server for them: logprobs of vLLM, "
            "return_logprob of SGLang, calculate_log_probs of verl."
        )
    return found


def _of_response(response: Mapping[str, Any]) -> list[NDArray[np.float32] | None]:
    """Return the log-probabilities of each sequence, in their order."""
    if isinstance(response, Gathered):
        return [_numbers(one) for one in reader_of(response).log_probabilities(response)]
    meta = response.get("meta_info")
    if isinstance(meta, dict) and isinstance(meta.get("output_token_logprobs"), list):
        return [
            _numbers(
                [one[0] if isinstance(one, list) and one else one for one in meta["output_token_logprobs"]]
            )
        ]
    return [_of_choice(one) for one in choices(response) or listed(response, "outputs") or [response]]


def _of_choice(choice: Mapping[str, Any]) -> NDArray[np.float32] | None:
    value = choice.get("logprobs")
    if isinstance(value, dict):
        if isinstance(value.get("content"), list):
            return _numbers(
                [one.get("logprob") if isinstance(one, dict) else one for one in value["content"]]
            )
        value = value.get("token_logprobs")
    return _numbers(value)


def _numbers(values: Any) -> NDArray[np.float32] | None:
    """Return numbers up to 0, NaN for null; None where there is no list."""
    if values is None:
        return None
    if hasattr(values, "tolist"):
        values = values.tolist()
    whole = isinstance(values, list) and all(
        one is None or (type(one) in (int, float) and not math.isnan(one) and one < 1e-3) for one in values
    )
    if not whole:
        raise Fault("log-probabilities are a list of numbers up to 0, or null")
    numbers = np.array([math.nan if one is None else one for one in values], np.float32)
    return np.where(np.isinf(numbers), np.float32("nan"), numbers)
