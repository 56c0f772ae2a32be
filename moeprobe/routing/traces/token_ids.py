"""Token ids in responses of inference servers: the sequences that were routed, their prompts and what was generated.

They are where servers put them when they are asked to: ``prompt_token_ids`` of the response or of a choice and
``token_ids`` of a choice (vLLM), ``output_ids`` beside ``input_ids`` (SGLang), or both in the object itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.log_rows import MOST_TOKEN, Fault
from moeprobe.routing.traces.readers.base import choices
from moeprobe.routing.traces.responses import identity, responses
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import is_file

_PROMPT = ("prompt_token_ids", "input_ids", "prompt_ids")
_GENERATED = ("token_ids", "output_ids", "output_token_ids", "completion_token_ids", "response_ids")


@dataclass(frozen=True)
class Tokens:
    """A sequence: its token ids ``(T,)``, the first ``prompt`` of which are the prompt's."""

    ids: NDArray[np.int32]
    prompt: int

    @property
    def generated(self) -> NDArray[np.bool_]:
        """``(T,)`` which tokens were generated."""
        return np.arange(len(self.ids)) >= self.prompt


def read_sequences(path: Path) -> dict[str, Tokens]:
    """Return the sequences in a file of responses, by the names that an import of its routing gives them.

    A response, or a choice, without token ids is passed over.

    Raises:
        UserError: the file cannot be read, two have one name, or there is none.
    """
    if not is_file(path):
        raise UserError(f"There is no file of responses {path}.")
    found: dict[str, Tokens] = {}
    for where, response in responses(path, progress=lambda count: None):
        try:
            if not isinstance(response, dict):
                raise Fault("a response is due, a JSON object")
            several = tokens_of(response)
            name = identity(response, f"{path.name}:{where.removeprefix('line ')}")
        except Fault as fault:
            raise UserError(f"{path}, {where}: {fault}.") from None
        for number, one in enumerate(several):
            own = name if len(several) == 1 else f"{name}/{number}"
            if own in found:
                raise UserError(f"{path}, {where}: request {quoted(own)} was there before.")
            if one is not None and len(one.ids):
                found[own] = one
    if not found:
        raise UserError(
            f"{path} holds no token ids; ask the server to return them: prompt_token_ids and token_ids of vLLM "
            "(return_token_ids), input_ids and output_ids of SGLang."
        )
    return found


def tokens_of(response: Mapping[str, Any]) -> list[Tokens | None]:
    """Return the sequence of each choice of a response, in their order; None where its ids are not given.

    Raises:
        Fault: ids are no list of whole numbers.
    """
    meta = response.get("meta_info")
    shared = [response, *([meta] if isinstance(meta, dict) else [])]
    return [_sequence([one, *shared]) for one in choices(response) or [response]]


def _sequence(places: list[Mapping[str, Any]]) -> Tokens | None:
    prompt, generated = _ids(places, _PROMPT), _ids(places, _GENERATED)
    if prompt is None or generated is None:
        return None
    return Tokens(np.concatenate([prompt, generated]), len(prompt))


def _ids(places: list[Mapping[str, Any]], names: tuple[str, ...]) -> NDArray[np.int32] | None:
    """Return the ids in the first place that has them."""
    for place in places:
        for name in names:
            if place.get(name) is not None:
                return _array(place[name], name)
    return None


def _array(value: Any, name: str) -> NDArray[np.int32]:
    whole = isinstance(value, list) and all(type(one) is int and 0 <= one <= MOST_TOKEN for one in value)
    if not whole:
        raise Fault(f"{name} takes a list of token ids, whole numbers from 0 to {MOST_TOKEN:,}")
    return np.array(value, np.int32)
