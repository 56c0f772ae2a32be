"""Counts of SGLang's expert-distribution recorder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, count
from moeprobe.recordings.responses import array_of

_KEY = "logical_count"


class SglangCounts(Reader):
    """SGLang's recorder, ``stat``: ``logical_count`` (steps, layers, experts) (torch); load only, one input per step.

    ``(layers, experts)``, as KTransformers takes it, is one step. Steps without any choice are left out.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it has the key, and no choices."""
        return _KEY in response and "records" not in response

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each logical expert was chosen in each step."""
        value = response[_KEY]
        is_one_step = getattr(value, "ndim", 3) == 2 or (isinstance(value, list) and not _is_nested(value))
        counts = array_of(value, _KEY, kinds="iuf", dims=2 if is_one_step else 3)
        if not np.isfinite(counts).all() or (counts != np.round(counts)).any():
            raise Fault(f"{_KEY} takes whole numbers")
        rank = count(response.get("rank")) or 0
        return [
            Capture(
                None,
                window=f"rank{rank}/step{step}",
                counts=step_counts.astype(np.int64) if step_counts.any() else None,
            )
            for step, step_counts in enumerate(counts[None] if is_one_step else counts)
        ]


def _is_nested(value: list[Any]) -> bool:
    """Whether a list has lists of lists."""
    return bool(value) and isinstance(value[0], list) and bool(value[0]) and isinstance(value[0][0], list)
