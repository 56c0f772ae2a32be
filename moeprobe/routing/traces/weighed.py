"""Choices put into the order of what routers weighed."""

from dataclasses import replace

import numpy as np

from moeprobe.routing.traces.log_rows import Row
from moeprobe.routing.traces.readers.base import Weights


def weighed(row: Row, weights: Weights) -> Row:
    """Return a row with gates, its experts ordered by their scores; ties go to the lower expert."""
    order = np.lexsort((row.experts, -weights.scores, row.experts < 0), axis=-1)
    alike = row.alike | {
        "ordered_by": weights.ordered_by,
        "gates_kept": "chosen" if weights.all_gates is None else "all",
    }
    return replace(
        row,
        alike=alike,
        experts=np.take_along_axis(row.experts, order, axis=-1),
        processed=np.take_along_axis(row.processed, order, axis=-1),
        gates=np.take_along_axis(weights.gates, order, axis=-1),
        all_gates=weights.all_gates,
        sum_to_one=weights.sum_to_one,
    )
