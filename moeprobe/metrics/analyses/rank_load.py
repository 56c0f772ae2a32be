"""How unevenly does a placement of experts load the ranks of expert parallelism?

The imbalance is the load of the busiest rank over the mean, of the whole recording, and within each window of requests,
where other ranks may be the busiest.

Axes: B requests, L layers, N ranks, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.rank_load import Placed, RankImbalance
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor

RANK_IMBALANCE = Metric(
    "rank_imbalance",
    about="load of the busiest rank over the mean load of the ranks, for a placement of experts (column view): "
    "1 = even; over all layers, busiest ranks added up over means added up",
    label="imbalance of the ranks",
    short="imbalance",
    better="less",
    unit="other",
    rank=42,
    severity="window",
)
WINDOW_IMBALANCE = Metric(
    "window_imbalance",
    about="rank_imbalance within windows of requests, each with its own busiest rank: busiest ranks added up over "
    "means added up",
    label="imbalance within windows",
    short="within windows",
    better="less",
    unit="other",
    rank=43,
)
RANK_SHARE = Metric(
    "rank_share",
    about="share of the choices that a rank computes (column expert: the number of the rank); 1 / ranks where even",
    label="share of the choices, by rank",
    rank=44,
)


@dataclass(frozen=True)
class RankLoads:
    """Loads of the ranks by some requests.

    Attributes:
        loads: ``(B, L, N)``; an expert with copies on several ranks loads them equally.
        choices: ``(B, L)``.
        window: 1 in the window of each request ``(B, W)``.
    """

    loads: Tensor
    choices: Tensor
    window: Tensor


class RankLoad(ModelAnalysis[RankLoads]):
    """Imbalance of the load over ranks, for a placement of experts.

    Two requests load two ranks with 8 and 2, and with 4 and 6 choices. Together that is 12 and 8, so the busiest is at
    12 / 10; each by itself, the busiest ranks are at (8 + 6) / (5 + 5):

    >>> import torch
    >>> from moeprobe.metrics.analyses.rank_load import RankLoad, RankLoads
    >>> from moeprobe.metrics.by_hand import numbers
    >>> loads = torch.tensor([[[8, 2]], [[4, 6]]])
    >>> numbers(RankLoad(), RankLoads(loads, loads.sum(2), window=torch.tensor([[1, 0], [0, 1]])))
    {'rank_imbalance': 1.2, 'window_imbalance': 1.4, 'rank_share 0': 0.6, 'rank_share 1': 0.4}
    """

    measures = (RANK_IMBALANCE, WINDOW_IMBALANCE, RANK_SHARE)
    signature = "rank_load"

    def sums(self, subject: RankLoads) -> dict[str, Tensor]:
        """Return the loads of the ranks, layer by layer in one row ``(B, L N)``."""
        return {
            "rank_load": subject.loads.flatten(1),
            "rank_choices": subject.choices,
            "rank_window": subject.window,
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the imbalance of all windows together and, of several, within them; then the share of each rank."""
        choices, window = columns["rank_choices"], columns["rank_window"]
        images, layers = choices.shape
        trials = choices.sum(1)
        loads = columns["rank_load"].astype(np.float64).reshape(images, layers, -1)
        by_rank = loads.sum(1)
        total = by_rank.sum(1)
        all_windows = Placed(loads, np.zeros(images, np.int64), 1)
        estimators = [RANK_IMBALANCE.raw(RankImbalance(all_windows), trials)]
        if np.count_nonzero(window.any(0)) > 1:
            by_window = Placed(loads, window.argmax(1), window.shape[1])
            estimators.append(WINDOW_IMBALANCE.raw(RankImbalance(by_window), trials))
        return estimators + [
            RANK_SHARE.raw(Share(load, total), trials, expert=rank)
            for rank, load in enumerate(by_rank.T.copy())
        ]
