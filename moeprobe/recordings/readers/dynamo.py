"""Objects of Dynamo, SkyRL and prime-rl."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import (
    KEY,
    Capture,
    Reader,
    Stated,
    array,
    captures_of,
    choices,
    count,
    decoded,
    holders,
    start_of,
)

_KEYS = {"data", "shape", "dtype"}


class Dynamo(Reader):
    """Dynamo, SkyRL, prime-rl: ``routed_experts`` is an object of ``data`` (base64), ``shape`` and ``dtype``."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether a value of the key has these keys; a choice's own null alone is vLLM's."""
        values = [fields[KEY] for fields in holders(response)]
        objects = [value for value in values if value is not None]
        if not objects:
            return bool(values) and not any(KEY in choice for choice in choices(response))
        return all(isinstance(value, dict) and value.keys() >= _KEYS for value in objects)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice."""
        return captures_of(response, _capture)


def _capture(value: Any, tokens: Stated) -> Capture:
    if value is None:
        return Capture(None)
    if not isinstance(value, dict) or not value.keys() >= _KEYS:
        raise Fault(f"{KEY} takes an object of {', '.join(sorted(_KEYS))}")
    sizes = value["shape"]
    if not isinstance(sizes, list) or len(sizes) != 3 or any(count(size) is None for size in sizes):
        raise Fault(f"shape takes tokens, layers and experts per token; got {str(sizes)[:100]}")
    ids = array(decoded(value["data"], "data"), dtype=value["dtype"], shape=sizes, what="data")
    return Capture(ids, start=start_of(value, "start"), stated=tokens)
