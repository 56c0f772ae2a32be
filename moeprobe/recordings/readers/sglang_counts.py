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

    Steps without any choice are left out.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it has the key, and no choices."""
        return _KEY in response and "records" not in response

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return how often each logical expert was chosen in each step."""
        counts = array_of(response[_KEY], _KEY, kinds="iuf", dims=3)
        if not np.isfinite(counts).all() or (counts != np.round(counts)).any():
            raise Fault(f"{_KEY} takes whole numbers")
        rank = count(response.get("rank")) or 0
        return [
            Capture(
                None,
                name=f"rank{rank}/step{step}",
                counts=step_counts.astype(np.int64) if step_counts.any() else None,
            )
            for step, step_counts in enumerate(counts)
        ]
