"""Responses of SGLang."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import (
    KEY,
    Capture,
    Fault,
    Reader,
    array,
    choices,
    decode_base64,
    start_of,
    stated,
)


class Sglang(Reader):
    """SGLang: flat base64 of ``routed_experts`` in ``meta_info``, in ``sglext``, or in ``choices[].sgl_ext``."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether one of the places has the key, with null or a text (LMDeploy has lists in the same places)."""
        values = [extension[KEY] for extension in _extensions(response) if extension and KEY in extension]
        return bool(values) and all(value is None or isinstance(value, str) for value in values)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice; there is a row for every hidden layer, and no shape beside it."""
        extensions = _extensions(response)
        native = "choices" not in response
        return [
            Capture(None)
            if extension is None or extension.get(KEY) is None
            else Capture(
                _flat(extension, shape),
                start=start_of(extension, f"{KEY}_start_len"),
                stated=stated(extension if native else response.get("usage"), several=len(extensions) > 1),
                ends_together=True,
            )
            for extension in extensions
        ]


def _flat(extension: Mapping[str, Any], shape: MoeShape) -> NDArray[Any]:
    """Return the experts of an object ``(T, L, K)``; layers of multi-token prediction are named."""
    content, dtype = decode_base64(extension[KEY], KEY), extension.get(f"{KEY}_dtype", "int32")

    def of_layers(number: int) -> NDArray[Any]:
        return array(content, dtype=dtype, shape=(-1, number, shape.top_k), what=KEY)

    try:
        return of_layers(shape.num_layers)
    except Fault as fault:
        layers = shape.num_layers + max(shape.mtp_layers, 1)
        try:
            of_layers(layers)
        except Fault:
            raise fault from None
        raise Fault(
            f"{KEY} holds whole rows of {layers} layers, and the model has {shape.num_layers}: "
            f"{shape.mtp_cause(layers)}"
        ) from None


def _extensions(response: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Return for each choice the object that may have the key; None where there is none.

    ``sglext`` of a response is of its first choice alone.
    """
    if isinstance(response.get("sglext"), dict):
        return [response["sglext"], *[None] * (len(choices(response)) - 1)]
    keys = (
        [("sgl_ext", choice) for choice in choices(response)]
        if "choices" in response
        else [("meta_info", response)]
    )
    values = [entry.get(key) for key, entry in keys]
    return [value if isinstance(value, dict) else None for value in values]
