"""Can the next experts be loaded ahead: do this layer's choices, or the previous token's, say which ones come?

Each predictor gives every expert a score, and the m experts with the highest scores are loaded ahead. The scores are
conditional frequencies of other requests, added up over the experts that are known:

* layer: how often the experts of the layer before go along with it, in the same token;
* token: how often the experts of the previous token come before it, in the same layer;
* both: the sum of the two.

Beside each stands what needs no knowledge of the request: the m busiest experts of other requests. An even router's
choices are found with m / E.

Axes: B sequences, P predictors, n sequences of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FittedKappa(Kappa):
    """Kappa against the experts that were the busiest in other requests.

    It has no interval: other requests would have other busiest experts, which resamples of the requests at hand leave
    out. In simulations their intervals held the truth in 70 to 93 %.
    """

    no_interval: ClassVar[str] = "fitted"


PREDICTORS = {
    "layer": "the experts of the MoE layer before, in the same token",
    "token": "the experts of the previous token, in the same layer",
    "both": "the experts of the MoE layer before and of the previous token",
}


def _recall(predictor: str) -> Metric:
    return Metric(
        f"prefetch_{predictor}",
        about=f"share of the chosen experts that are among the m experts predicted from {PREDICTORS[predictor]}, with "
        "frequencies of other requests; m is in the column severity",
        label=f"found ahead, from {predictor}",
        short=predictor,
        noun=f"recall of experts predicted from {PREDICTORS[predictor]}",
        nulls=("busiest", "even"),
        rank=53,
        severity="loaded",
    )


PREFETCH = MetricFamily("prefetch_{predictor}", rf"prefetch_({'|'.join(PREDICTORS)})", _recall, ("layer",))


@dataclass(frozen=True)
class PrefetchHits:
    """What predictions of one size found.

    Attributes:
        hits: ``(B, P)`` choices that each of ``PREDICTORS`` found.
        busiest: ``(B, P)`` of the same choices, what the busiest experts of other requests found.
        choices: ``(B, P)`` that it was tried on.
        even: ``(B, P)`` float64, how many of them are found of an even router.
    """

    hits: Tensor
    busiest: Tensor
    choices: Tensor
    even: Tensor


class Prefetch(ModelAnalysis[PrefetchHits]):
    """Share of the chosen experts that were predicted.

    Of ten choices seven follow from the layer before, and five are among the busiest: κ = (0.7 − 0.5) / (1 − 0.5).

    >>> import torch
    >>> from moeprobe.metrics.analyses.prefetch import Prefetch, PrefetchHits
    >>> from moeprobe.metrics.by_hand import numbers
    >>> hits, busiest, choices = (torch.tensor([[number] * 3]) for number in (7, 5, 10))
    >>> value = numbers(Prefetch(), PrefetchHits(hits, busiest, choices, choices * 0.25))
    >>> [value[f"prefetch_layer{name}"] for name in ("", "_chance busiest", "_kappa busiest", "_chance even")]
    [0.7, 0.5, 0.4, 0.25]
    """

    measures = (PREFETCH,)
    signature = "prefetch_choices"

    def sums(self, subject: PrefetchHits) -> dict[str, Tensor]:
        """Return hits and choices per sequence."""
        return {
            "prefetch_hits": subject.hits,
            "prefetch_busiest": subject.busiest,
            "prefetch_choices": subject.choices,
            "prefetch_even": subject.even.double(),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the recall of each predictor that has anything to go by, beside both levels."""
        estimators = []
        for index, predictor in enumerate(PREDICTORS):
            choices = columns["prefetch_choices"][:, index]
            # Before the first MoE layer there is none.
            if not choices.any():
                continue
            metric, trials = PREFETCH.make(predictor), choices.astype(np.float64)
            recall, busiest, even = (
                Share(columns[f"prefetch_{name}"][:, index].astype(np.float64), trials)
                for name in ("hits", "busiest", "even")
            )
            estimators += [
                metric.raw(recall, choices),
                *metric.against("busiest", busiest, FittedKappa(recall, busiest), choices),
                *metric.chance_and_kappa("even", even, recall, choices),
            ]
        return estimators
