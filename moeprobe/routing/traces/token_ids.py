"""Token ids in responses of inference servers: the sequences that were routed, their prompts and what was generated.

They are where servers put them when they are asked to: ``prompt_token_ids`` of the response or of a choice and
``token_ids`` of a choice (vLLM), ``output_ids`` beside ``input_ids`` (SGLang), or both in the object itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.log_rows import Fault
from moeprobe.routing.traces.readers.base import Reader, choices, listed
from moeprobe.routing.traces.responses import Gathered, identity, responses
from moeprobe.routing.traces.sequence import Tokens, token_array
from moeprobe.runtime.catalog import READERS
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import is_file

_PROMPT = ("prompt_token_ids", "input_ids", "prompt_ids")
_GENERATED = ("token_ids", "output_ids", "output_token_ids", "completion_token_ids", "response_ids")


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
            several = named_sequences(response, f"{path.name}:{where.removeprefix('line ')}")
        except Fault as fault:
            raise UserError(f"{path}, {where}: {fault}.") from None
        for own, one in several:
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


def named_sequences(response: Mapping[str, Any], place: str) -> list[tuple[str, Tokens | None]]:
    """Return each sequence of a response by the name that an import gives it; ``place``: its file and line.

    Raises:
        Fault: ids are no list of whole numbers.
    """
    if isinstance(response, Gathered):
        return list(reader_of(response).sequences(response))
    name, several = identity(response, place), tokens_of(response)
    return [(name if len(several) == 1 else f"{name}/{number}", one) for number, one in enumerate(several)]


def reader_of(response: Gathered) -> Reader:
    """Return what reads a gathered response.

    Raises:
        Fault: nothing does.
    """
    for reader in map(READERS.get, READERS.names()):
        if reader().reads(response):
            found: Reader = reader()
            return found
    raise Fault("no reader knows token ids in it")


def tokens_of(response: Mapping[str, Any]) -> list[Tokens | None]:
    """Return the sequence of each choice of a response, in their order; None where its ids are not given.

    Raises:
        Fault: ids are no list of whole numbers.
    """
    meta = response.get("meta_info")
    shared = [response, *([meta] if isinstance(meta, dict) else [])]
    return [
        _sequence([one, *shared]) for one in choices(response) or listed(response, "outputs") or [response]
    ]


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
                return token_array(place[name], name)
    return None
