"""How many tokens back is the last use of an expert?

Axes: B sequences, D distances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.curve import LevelOfCurve

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.sequences import Sequences

PERCENTS = (50, 90)
# Every distance up to 16 tokens, then four in each doubling.
_DISTANCES = (*range(1, 17), *(2**power * quarter // 4 for power in range(4, 12) for quarter in (5, 6, 7, 8)))
# Of each gap up to the one behind the largest distance; the last entry is that of -1, a missing choice.
_BIN_OF_GAP = np.append(
    np.searchsorted(_DISTANCES, np.arange(1, _DISTANCES[-1] + 2)), len(_DISTANCES) + 1
).astype(np.int64)


def _distance(percent: str) -> Metric:
    return Metric(
        f"reuse_distance_{percent}",
        about=f"number of tokens within which {percent} % of the choices have the last use of their expert; choices of "
        "an expert that the sequence did not use before count as further away, and there is no value where they are "
        "too many",
        label=f"tokens back to the last use, {percent} %",
        noun=f"distance to the last use of an expert ({percent} %)",
        unit="count",
        rank=43,
    )


REUSE_DISTANCE = MetricFamily("reuse_distance_{percent}", r"reuse_distance_(\d+)", _distance, ("50",))


class ReuseDistance(ModelAnalysis["Sequences"]):
    """Quantiles of the number of tokens back to the last use of an expert.

    Of the choices 0 1 0 1 0 1 0 1 six of eight have their expert two tokens before, so half of them are reached on two
    thirds of the way from one token to two:

    >>> import torch
    >>> from moeprobe.metrics.analyses.reuse_distance import ReuseDistance
    >>> from moeprobe.metrics.by_hand import numbers
    >>> from moeprobe.metrics.sequences import Sequences
    >>> experts = torch.tensor([0, 1] * 4, dtype=torch.int16)[None, :, None]
    >>> numbers(ReuseDistance(), Sequences(experts, torch.ones(1, 8, dtype=torch.bool), num_experts=2))
    {'reuse_distance_50': 1.667, 'reuse_distance_90': nan}
    """

    measures = (REUSE_DISTANCE,)
    signature = "distance_choices"

    def sums(self, subject: Sequences) -> dict[str, Tensor]:
        """Return the choices of each sequence, and how many have their expert within each distance ``(B, D)``."""
        import torch

        uses = subject.uses
        # Missing choices are counted in a bin of their own, behind those that are further away than any distance.
        rows, width = uses.num_sequences, len(_DISTANCES) + 2
        bins = uses.sequence * width + _BIN_OF_GAP[np.minimum(uses.gap, _DISTANCES[-1])]
        counts = np.bincount(bins.ravel(), minlength=rows * width).reshape(rows, width)[:, :-1]
        within = counts[:, :-1].cumsum(1)
        return {
            "distance_hits": torch.from_numpy(within),
            "distance_choices": torch.from_numpy(counts.sum(1)),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the quantiles."""
        choices, hits = columns["distance_choices"], columns["distance_hits"].astype(np.float64)
        distances = np.array(_DISTANCES, np.float64)
        return [
            REUSE_DISTANCE.make(str(percent)).raw(
                LevelOfCurve(distances, hits, choices.astype(np.float64), percent / 100), choices
            )
            for percent in PERCENTS
        ]
