"""Forms in which one value holds the experts of a sequence: objects with a shape, .npy files, pairs, nested lists.

What a value claims is checked against its bytes before anything is allocated (``readers.base.array``).

Axes: T rows, L layers as they were sent, K experts per token.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import NPY, array, count, decode_base64, npy, start_of
from moeprobe.recordings.readers.nemo import numbers_of
from moeprobe.recordings.responses import array_of, is_nested
from moeprobe.recordings.unknown_file import not_recognized

# The type of whole numbers by their bytes. A signed one where -1 may stand for no expert; of one byte 255 does.
_BY_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
_SHORT = {
    "u1": "uint8",
    "i1": "int8",
    "u2": "uint16",
    "i2": "int16",
    "u4": "uint32",
    "i4": "int32",
    "i8": "int64",
}


@dataclass(frozen=True)
class ExpertRows:
    """Experts ``(T, L, K)``, and the place of the first row in its sequence."""

    ids: NDArray[Any]
    start: int = 0


def axes_of(value: Any) -> tuple[int, str]:
    """Return how many axes a value has, by its first entries, and the kind of its numbers: i, f, s (text), or none.

    A list of arrays has one axis more than its arrays.
    """
    depth = 0
    while isinstance(value, list | tuple):
        depth += 1
        # Nothing at the front (of an aborted request, or a dense layer) says nothing.
        value = next(
            (entry for entry in value if entry is not None and not (isinstance(entry, list) and not entry)),
            None,
        )
    if is_nested(value):
        return depth + value.dim(), "f" if value.dtype.is_floating_point else "i"
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        name = str(value.dtype)
        return depth + value.ndim, "f" if "float" in name else "i" if "int" in name else "none"
    kinds = {bool: "none", int: "i", float: "f", str: "s"}
    return depth, kinds.get(type(value), "none")


def is_shaped(value: Any) -> bool:
    """Whether it is an object of ``data`` and ``shape``."""
    return isinstance(value, dict) and value.keys() >= {"data", "shape"}


def is_pair(value: Any) -> bool:
    """Whether it is two things: a shape (with a type), as JSON or a list, and base64."""
    return isinstance(value, list | tuple) and len(value) == 2 and _header(value) is not None


def shaped_array(value: Mapping[str, Any], what: str) -> tuple[NDArray[Any], int, str]:
    """Return the numbers of an object of ``data`` (base64), ``shape`` and ``dtype``, their start, and their type.

    Where ``dtype`` is missing, the bytes of each number say it.

    Raises:
        Fault: it is no such object, or has not as many bytes as its shape asks for.
    """
    sizes = value["shape"]
    if not isinstance(sizes, list) or len(sizes) != 3 or any(count(size) is None for size in sizes):
        raise Fault(f"shape takes tokens, layers and experts per token; got {str(sizes)[:100]}")
    content = decode_base64(value["data"], what)
    dtype = _dtype(value.get("dtype"), len(content), sizes)
    return array(content, dtype=dtype, shape=sizes, what=what), start_of(value, "start"), dtype


def _dtype(name: Any, size: int, sizes: list[int]) -> str:
    """Return the type of numbers by its name; by their bytes where there is none."""
    if name is None:
        number = math.prod(sizes)
        return _BY_SIZE.get(size // number if number else 1, "uint8")
    text = str(name).removeprefix("torch.").removeprefix("numpy.")
    return _SHORT.get(text.lstrip("<|"), text)


def _header(value: Any) -> tuple[dict[str, Any], str] | None:
    """Return the header and the base64 of a pair, in either order; None where it is none."""
    for head, data in (value, value[::-1]):
        if isinstance(head, str) and head.lstrip().startswith(("{", "[")) and len(head) < 2**12:
            try:
                head = json.loads(head)  # noqa: PLW2901 (JSON within JSON)
            except (ValueError, RecursionError):
                continue
        if isinstance(head, list) and all(count(size) is not None for size in head):
            head = {"shape": head}  # noqa: PLW2901 (a shape alone)
        if isinstance(data, str) and isinstance(head, dict) and "shape" in head:
            return head, data
    return None


def is_rows(value: Any, *, has_usual_key: bool) -> bool:
    """Whether a value may be the experts of one sequence; ``has_usual_key``: its key says that it is."""
    if isinstance(value, str):
        return value.startswith((NPY, "nrlre1:")) or (has_usual_key and len(value) > 0)
    return is_shaped(value) or is_pair(value) or axes_of(value) == (3, "i")


def rows_of(value: Any, what: str, shape: MoeShape | None, tokens: int | None) -> ExpertRows:
    """Return the experts in a value.

    Args:
        value: what ``is_rows`` says yes to.
        what: its key.
        shape: the MoE layers of the model; None = not known, and base64 without a shape is no rows.
        tokens: of the sequence; None = not known.

    Raises:
        Fault: it is damaged, of other axes, or may be read in several ways.
    """
    if isinstance(value, str):
        return ExpertRows(_of_text(value, what, shape, tokens))
    if is_pair(value):
        header = _header(value)
        assert header is not None
        value = header[0] | {"data": header[1]}
    if is_shaped(value):
        if axes_of(value["data"])[1] == "i":
            return ExpertRows(array_of(value["data"], what, dims=3), start_of(value, "start"))
        numbers, start, _ = shaped_array(value, what)
        return ExpertRows(numbers, start)
    return ExpertRows(array_of(value, what, dims=3))


def _of_text(text: str, what: str, shape: MoeShape | None, tokens: int | None) -> NDArray[Any]:
    if text.startswith("nrlre1:"):
        return numbers_of(text, what)
    content = decode_base64(text, what)
    if text.startswith(NPY):
        return npy(content, what, axes="tokens, layers and experts per token")
    if shape is None:
        return np.zeros((0, 0, 0), np.uint8)
    layers = dict.fromkeys((len(shape.sparse), shape.num_layers))
    fitting = [
        (number, size)
        for number in layers
        for size in _BY_SIZE
        if len(content) % (number * shape.top_k * size) == 0
        and (tokens is None or len(content) // (number * shape.top_k * size) in (tokens - 1, tokens))
    ]
    if not fitting:
        raise not_recognized(
            f"{what} is base64 without a shape, and its {len(content):,} bytes are no whole rows of the model"
        )
    if len(fitting) > 1:
        readings = " or ".join(f"{number} layers of {_BY_SIZE[size]}" for number, size in fitting)
        raise Fault(
            f"{what} is base64 without a shape, and may be {readings}; save it as an object of data, shape and dtype"
        )
    [(number, size)] = fitting
    return array(content, dtype=_BY_SIZE[size], shape=(-1, number, shape.top_k), what=what)
