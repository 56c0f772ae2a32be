"""How unevenly does a placement of experts load the ranks of expert parallelism?

The imbalance is the load of the busiest rank over the mean, of the whole recording, and within each window of requests,
where other ranks may be the busiest. Beside each stands what a router comes to that chooses all experts equally often.

Axes: B requests, L layers, N ranks, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.hot_experts import FixedLevel
from moeprobe.metrics.stats.rank_load import Placed, RankImbalance, even_imbalance
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
RANK_IMBALANCE_EVEN = Metric(
    "rank_imbalance_even",
    about="rank_imbalance of a router that chooses all experts equally often, at as many choices",
    label="imbalance of the ranks, even router",
    unit="other",
    rank=43,
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
    rank=44,
)
WINDOW_IMBALANCE_EVEN = Metric(
    "window_imbalance_even",
    about="window_imbalance of a router that chooses all experts equally often, at as many choices",
    label="imbalance within windows, even router",
    unit="other",
    rank=45,
)
RANK_SHARE = Metric(
    "rank_share",
    about="share of the choices that a rank computes (column expert: the number of the rank); 1 / ranks where even",
    label="share of the choices, by rank",
    rank=46,
)


@dataclass(frozen=True)
class RankLoads:
    """Loads of the ranks by some requests.

    Attributes:
        loads: ``(B, L, N)``; an expert with copies on several ranks loads them equally.
        expected: loads that a router gives which chooses all experts equally often ``(B, L, N)``.
        variance: of these ``(B, L, N)``.
        choices: ``(B, L)``.
        window: 1 in the window of each request ``(B, W)``.
    """

    loads: Tensor
    expected: Tensor
    variance: Tensor
    choices: Tensor
    window: Tensor


class RankLoad(ModelAnalysis[RankLoads]):
    """Imbalance of the load over ranks, for a placement of experts."""

    measures = (RANK_IMBALANCE, RANK_IMBALANCE_EVEN, WINDOW_IMBALANCE, WINDOW_IMBALANCE_EVEN, RANK_SHARE)
    signature = "rank_load"

    def sums(self, subject: RankLoads) -> dict[str, Tensor]:
        """Return the loads of the ranks, layer by layer in one row ``(B, L N)``."""
        return {
            "rank_load": subject.loads.flatten(1),
            "rank_expected": subject.expected.flatten(1),
            "rank_variance": subject.variance.flatten(1),
            "rank_choices": subject.choices,
            "rank_window": subject.window,
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the imbalance of all windows together and, of several, within them; then the share of each rank."""
        choices, window = columns["rank_choices"], columns["rank_window"]
        images, layers = choices.shape
        trials = choices.sum(1)
        windows = np.zeros(images, np.int64), window.argmax(1)

        def placed(name: str, *, within: bool) -> Placed:
            loads = columns[name].astype(np.float64).reshape(images, layers, -1)
            return Placed(loads, windows[within], window.shape[1] if within else 1)

        by_rank = columns["rank_load"].astype(np.float64).reshape(images, layers, -1).sum(1)
        total = by_rank.sum(1)
        estimators = [
            RANK_SHARE.raw(Share(load, total), trials, expert=rank)
            for rank, load in enumerate(by_rank.T.copy())
        ]
        metrics = [(RANK_IMBALANCE, RANK_IMBALANCE_EVEN, False)]
        if np.count_nonzero(window.any(0)) > 1:
            metrics.append((WINDOW_IMBALANCE, WINDOW_IMBALANCE_EVEN, True))
        for raw, even, within in metrics:
            imbalance = RankImbalance(placed("rank_load", within=within))
            level = even_imbalance(
                placed("rank_expected", within=within), placed("rank_variance", within=within)
            )
            fixed = FixedLevel(level, images, linear=RankImbalance.linear)
            estimators += [raw.raw(imbalance, trials), even.raw(fixed, trials)]
        return estimators
