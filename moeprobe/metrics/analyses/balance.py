"""How uneven is the load of the experts? Three more numbers of it, beside ``load_entropy``.

With p_e the share of all K choices that expert e has, and E experts:

* ``max_violation``: max E p_e − 1, how far the busiest expert is above the mean (MaxVio, Wang et al. 2024);
* ``load_cv``: the standard deviation of p_e divided by its mean (CV);
* ``load_gini``: Σ_ij |p_i − p_j| / 2E, the Gini index: 0 = even, (E − 1) / E = all to one.

Where K > 1, ``max_violation_first`` and so on count first choices only. Few images make each of them larger.
Where experts choose their tokens all are equally busy: see ``unserved`` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.analyses.load import first_of, loads, loads_of
from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.load import OfShares
from moeprobe.metrics.stats.statistic import Array, divide

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

MAX_VIOLATION = Metric(
    "max_violation",
    about="load of the busiest expert over the mean load, less 1: 0 = even, E − 1 = all to one",
    label="busiest expert above the mean (MaxVio)",
    unit="other",
)
LOAD_CV = Metric(
    "load_cv",
    about="standard deviation of the experts' loads over their mean: 0 = even",
    label="coefficient of variation of the load",
    unit="other",
)
LOAD_GINI = Metric(
    "load_gini",
    about="Gini index of the experts' loads: 0 = even, (E − 1) / E = all to one",
    label="Gini index of the load",
)


def _violation(shares: Array) -> Array:
    return len(shares) * shares.max(0) - 1


def _slope_of_violation(shares: Array) -> Array:
    busiest = shares == shares.max()
    return len(shares) * busiest / busiest.sum()


def _variation(shares: Array) -> Array:
    return len(shares) * shares.std(0)


def _slope_of_variation(shares: Array) -> Array:
    return divide(shares - shares.mean(), shares.std(), empty=0.0)


def _gini(shares: Array) -> Array:
    return _ranks(len(shares)) @ np.sort(shares, axis=0)


def _slope_of_gini(shares: Array) -> Array:
    # Experts of one load share their ranks.
    _, number, count = np.unique(shares, return_inverse=True, return_counts=True)
    return divide(np.bincount(number, weights=_ranks(len(shares))[np.argsort(np.argsort(shares))]), count)[
        number
    ]


def _ranks(number: int) -> Array:
    """Return the weights of the shares in ascending order: (2i − E − 1) / E, i from 1 on."""
    return (2.0 * np.arange(1, number + 1) - number - 1) / number


_OF_SHARES = {
    MAX_VIOLATION: (_violation, _slope_of_violation),
    LOAD_CV: (_variation, _slope_of_variation),
    LOAD_GINI: (_gini, _slope_of_gini),
}
_FIRST = {metric: first_of(metric, f"{metric.about}; of the first choices") for metric in _OF_SHARES}


class Balance(LayerAnalysis):
    """Busiest expert above the mean (MaxVio), coefficient of variation and Gini index of the experts' loads.

    Ten tokens, eight of which choose expert 0 of two: the busiest is at 0.8 / 0.5 − 1, the standard deviation of 0.8
    and 0.2 over their mean is 0.3 / 0.5, and their difference of 0.6, counted twice, is divided by 2 E:

    >>> from moeprobe.metrics.analyses.balance import Balance
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(Balance(), pair(route([[0, 0, 0, 0, 0, 0, 0, 0, 1, 1]])))
    {'max_violation': 0.6, 'load_cv': 0.6, 'load_gini': 0.3}
    """

    measures = (*_OF_SHARES, *_FIRST.values())
    signature = "balance"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and there is more than one."""
        return layer.tokens_choose and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return how many patches of the view chose each expert, ``(B, E)``."""
        return {pair.view.modality.token: loads(self.signature, [pair.view])}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the three numbers."""
        every, first = loads_of(self.signature, columns)
        return [
            (metric if load is every else _FIRST[metric]).raw(
                OfShares(load.astype(np.float64), *functions), load.sum(1)
            )
            for load in (every, first)
            if load is not None
            for metric, functions in _OF_SHARES.items()
        ]
