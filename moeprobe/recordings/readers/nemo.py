"""Strings of NeMo-RL."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import (
    KEY,
    Capture,
    Reader,
    Stated,
    array,
    captures_of,
    decode_base64,
    holders,
)

_HEAD = re.compile(r"nrlre1:(int8|int16|int32):(\d{1,9})x(\d{1,9})x(\d{1,9}):")


class Nemo(Reader):
    """NeMo-RL: ``routed_experts`` is a string ``nrlre1:TYPE:TOKENSxLAYERSxK:BASE64``."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether a value of the key begins so."""
        values = [fields[KEY] for fields in holders(response)]
        return any(isinstance(value, str) and value.startswith("nrlre1:") for value in values)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice."""
        return captures_of(response, _capture)


def _capture(value: Any, tokens: Stated) -> Capture:
    return Capture(None) if value is None else Capture(numbers_of(value, KEY), stated=tokens)


def numbers_of(value: Any, what: str) -> NDArray[Any]:
    """Return the experts ``(T, L, K)`` of such a string.

    Raises:
        Fault: it is none, or has not as many bytes as it says.
    """
    head = _HEAD.match(value) if isinstance(value, str) else None
    if head is None:
        raise Fault(f"{what} takes nrlre1:TYPE:TOKENSxLAYERSxK:BASE64, of int8, int16 or int32")
    dtype, *sizes = head.groups()
    return array(decode_base64(value[head.end() :], what), dtype=dtype, shape=[*map(int, sizes)], what=what)
