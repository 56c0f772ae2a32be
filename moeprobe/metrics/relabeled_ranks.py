"""Metrics that compare the imbalance of ranks with relabeled experts; ``recorded/trace_balance`` computes them."""

from typing import NamedTuple

from moeprobe.metrics.analyses.rank_load import RANK_IMBALANCE, WINDOW_IMBALANCE
from moeprobe.metrics.declaration import Metric

_HOW = "where experts are relabeled at random within each request"


class RelabeledMetrics(NamedTuple):
    """The metrics that compare an imbalance with relabeled experts."""

    relabeled: Metric
    ratio: Metric
    p: Metric


def _comparison(metric: Metric) -> RelabeledMetrics:
    name, label = metric.name, metric.label
    return RelabeledMetrics(
        Metric(
            f"{name}_relabeled",
            about=f"{name} {_HOW}, so that each request is as uneven and has other hot experts: mean over 200 draws; "
            "its range holds 95 % of them",
            label=f"{label}, relabeled experts", unit="other", below=name, severity="window",
        ),
        Metric(
            f"{name}_ratio",
            about=f"{name} divided by {name}_relabeled: 1 = requests are uneven and no expert stays hot",
            label="ratio to relabeled experts", unit="other", below=name, severity="window",
        ),
        Metric(
            f"{name}_p",
            about=f"share of draws in which {name} is at least as large {_HOW}; the observed order counts as one",
            label="p", unit="probability", below=name, margin=False, severity="window",
        ),
    )  # fmt: skip


OF_RANKS, OF_WINDOWS = _comparison(RANK_IMBALANCE), _comparison(WINDOW_IMBALANCE)
measures = (*OF_RANKS, *OF_WINDOWS)
