"""Traces of llama.cpp."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader
from moeprobe.recordings.responses import CSV_COLUMNS

_NAME = "all"


class LlamaCpp(Reader):
    """llama.cpp's ``moe-trace``: a CSV ``layer,expert``, a line per choice; tokens are unknown, so only the load.

    A file is one input.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether these are the columns."""
        return response.keys() == {*CSV_COLUMNS, "count"} and isinstance(response["count"], np.ndarray)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each expert was chosen."""
        layer, expert = (response[name] for name in CSV_COLUMNS)
        for name, values, size in (("layer", layer, shape.num_layers), ("expert", expert, shape.num_experts)):
            if (values >= size).any():
                cause = shape.mtp_cause(int(values.max()) + 1) if name == "layer" else ""
                raise Fault(
                    f"{name} {values.max()} is none of the {size} {name}s of the model"
                    + (f": {cause}" if cause else "")
                )
        counts = np.zeros((shape.num_layers, shape.num_experts), np.int64)
        counts[layer, expert] = response["count"]
        return [Capture(None, name=_NAME, counts=counts)]
