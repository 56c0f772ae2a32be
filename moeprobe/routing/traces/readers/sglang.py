"""Responses of SGLang."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.routing.traces.model_config import MoeShape
from moeprobe.routing.traces.readers.base import (
    KEY,
    Capture,
    Reader,
    array,
    choices,
    decoded,
    start_of,
    stated,
)


class Sglang(Reader):
    """SGLang: flat base64 in ``meta_info.routed_experts``, or in ``choices[].sgl_ext.routed_experts``."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether one of the two places has the key."""
        return any(KEY in place for place in _places(response) if place is not None)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice; there is a row for every hidden layer, and no shape beside it."""
        places = _places(response)
        native = "choices" not in response
        return [
            Capture(None)
            if place is None or place.get(KEY) is None
            else Capture(
                array(
                    decoded(place[KEY], KEY),
                    dtype=place.get(f"{KEY}_dtype", "int32"),
                    shape=(-1, shape.num_layers, shape.top_k),
                    what=KEY,
                ),
                start=start_of(place, f"{KEY}_start_len"),
                stated=stated(place if native else response.get("usage"), several=len(places) > 1),
            )
            for place in places
        ]


def _places(response: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Return for each choice the object that may have the key; None where there is none."""
    keys = (
        [("sgl_ext", one) for one in choices(response)]
        if "choices" in response
        else [("meta_info", response)]
    )
    found = [one.get(key) for key, one in keys]
    return [place if isinstance(place, dict) else None for place in found]
