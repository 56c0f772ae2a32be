"""Traces of llama.cpp."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeprobe.routing.traces.csv_choices import COLUMNS
from moeprobe.routing.traces.log_rows import Fault
from moeprobe.routing.traces.model_config import MoeShape
from moeprobe.routing.traces.readers.base import Capture, Reader
from moeprobe.routing.traces.sequence import Tokens

_NAME = "all"


class LlamaCpp(Reader):
    """llama.cpp's ``moe-trace``: a CSV ``layer,expert``, a line per choice; tokens are unknown, so only the load.

    A file is one input.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether these are the columns."""
        return response.keys() == {*COLUMNS, "count"} and isinstance(response["count"], np.ndarray)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen."""
        layer, expert = (response[name] for name in COLUMNS)
        for name, values, most in (("layer", layer, shape.num_layers), ("expert", expert, shape.num_experts)):
            if (values >= most).any():
                raise Fault(f"{name} {values.max()} is none of the {most} {name}s of the model")
        counts = np.zeros((shape.num_layers, shape.num_experts), np.int64)
        counts[layer, expert] = response["count"]
        return [Capture(None, name=_NAME, counts=counts)]

    def sequences(self, response: Mapping[str, Any]) -> Sequence[tuple[str, Tokens | None]]:
        """Return nothing: no token is known."""
        return []
