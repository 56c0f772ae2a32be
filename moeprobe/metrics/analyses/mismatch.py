"""How far the log-probabilities of a server are from the model's own, and how much of that its routing explains.

The model scores the tokens that a server generated twice: as it routes them itself, and with the server's choices of
experts. What is left the second time is the rest: attention, other kernels, other precision.

Axes: B requests, T tokens, n requests of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import PartOf

if TYPE_CHECKING:
    from torch import Tensor

# Nats per token that are the rounding of log-probabilities in float32; of k3, d² / 2 of as much.
ROUNDING = 1e-5
_FLOORS = {"mismatch": ROUNDING, "mismatch_k3": ROUNDING**2 / 2}
_SAID = {
    "mismatch": ("mean absolute difference of log-probability between the server and", "difference from the server"),
    "mismatch_k3": ("mean of exp(d) − 1 − d, d the difference of log-probability between the server and",
                    "k3 divergence from the server"),
}  # fmt: skip


def _metric(name: str, description: str, label: str, *, share: bool = False) -> Metric:
    return Metric(name, about=description, label=label, unit="other" if share else "nats", margin=False)


def _metrics() -> dict[tuple[str, str], Metric]:
    """Return the metrics by quantity and part."""
    metrics = {}
    for name, (description, label) in _SAID.items():
        metrics[name, "own"] = _metric(name, f"{description} the model with its own routing", label)
        metrics[name, "rest"] = _metric(
            f"{name}_rest", f"{description} the model with the server's routing", "  with its routing"
        )
        metrics[name, "routing"] = _metric(
            f"{name}_routing",
            f"{name} minus {name}_rest: the part that vanishes with the server's routing",
            "  due to routing",
        )
        metrics[name, "share"] = _metric(
            f"{name}_routing_share",
            f"{name}_routing divided by {name}: below 0 where the server's routing makes it worse; none where {name} "
            f"or its interval reaches {_FLOORS[name]:g} nats, which is rounding",
            "  share due to routing",
            share=True,
        )
    return metrics


_METRICS = _metrics()


@dataclass(frozen=True)
class Scores:
    """Log-probabilities ``(B, T)`` of the server, of the model, and of the model with the server's routing; or NaN."""

    server: Tensor
    model: Tensor
    replayed: Tensor


class MismatchAnalysis(ModelAnalysis[Scores]):
    """Mismatch of log-probabilities between server and model: the whole, its routing, and the rest.

    Two tokens are 0.3 and 0.5 nats from the server, and 0.1 each with its routing: 0.3 of 0.4 is due to routing:

    >>> import torch
    >>> from moeprobe.metrics.analyses.mismatch import MismatchAnalysis, Scores
    >>> from moeprobe.metrics.by_hand import numbers
    >>> server, model, replayed = (torch.tensor([row]) for row in ([-1.0, -2.0], [-1.3, -1.5], [-1.1, -1.9]))
    >>> value = numbers(MismatchAnalysis(), Scores(server, model, replayed))
    >>> value["mismatch"], value["mismatch_rest"], value["mismatch_routing"], value["mismatch_routing_share"]
    (0.4, 0.1, 0.3, 0.75)

    Args:
        shares: whether a part of the mismatch can be routing: not where server and model are two models.
    """

    measures = tuple(_METRICS.values())
    signature = "mismatch_tokens"

    def __init__(self, *, shares: bool = True) -> None:
        self._shares = shares

    def sums(self, subject: Scores) -> dict[str, Tensor]:
        """Return sums over the tokens of each request ``(B,)``."""
        has_scores = ~(subject.server.isnan() | subject.model.isnan() | subject.replayed.isnan())
        columns = {"mismatch_tokens": has_scores.sum(1)}
        for part, view in (("own", subject.model), ("rest", subject.replayed)):
            log_ratio = (view - subject.server).where(has_scores, 0.0).double()
            columns[f"mismatch_{part}"] = log_ratio.abs().sum(1)
            columns[f"mismatch_k3_{part}"] = (log_ratio.expm1() - log_ratio).sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over all tokens, their difference, and its share if there can be one."""
        trials = columns["mismatch_tokens"]
        count = trials.astype(np.float64)
        estimators = []
        for name in _SAID:
            model, replayed = (columns[f"{name}_{part}"].astype(np.float64) for part in ("own", "rest"))
            for part, sums in (("own", model), ("rest", replayed), ("routing", model - replayed)):
                estimators.append(_METRICS[name, part].mean_of(sums, trials))
            if self._shares:
                share = PartOf(model - replayed, model, count, _FLOORS[name])
                estimators.append(_METRICS[name, "share"].raw(share, trials))
        return estimators
