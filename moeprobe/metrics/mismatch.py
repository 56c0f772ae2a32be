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
from moeprobe.metrics.stats.statistic import Ratio

if TYPE_CHECKING:
    from torch import Tensor

_SAID = {
    "mismatch": ("mean absolute difference of log-probability between the server and", "difference from the server"),
    "mismatch_k3": ("mean of exp(d) − 1 − d, d the difference of log-probability between the server and",
                    "k3 divergence from the server"),
}  # fmt: skip


def _metric(name: str, about: str, label: str, *, share: bool = False) -> Metric:
    return Metric(name, about=about, label=label, unit="other" if share else "nats", margin=False)


def _metrics() -> dict[tuple[str, str], Metric]:
    """Return the metrics by what is measured and of which part."""
    found = {}
    for name, (about, label) in _SAID.items():
        found[name, "own"] = _metric(name, f"{about} the model with its own routing", label)
        found[name, "rest"] = _metric(
            f"{name}_rest", f"{about} the model with the server's routing", "  with its routing"
        )
        found[name, "routing"] = _metric(
            f"{name}_routing",
            f"{name} minus {name}_rest: the part that vanishes with the server's routing",
            "  of routing",
        )
        found[name, "share"] = _metric(
            f"{name}_routing_share",
            f"{name}_routing divided by {name}: below 0 where the server's routing makes it worse",
            "  share of routing",
            share=True,
        )
    return found


_METRICS = _metrics()


@dataclass(frozen=True)
class Scores:
    """Log-probabilities ``(B, T)`` of the server, of the model, and of the model with the server's routing; or NaN."""

    server: Tensor
    own: Tensor
    replayed: Tensor


class Mismatch(ModelAnalysis[Scores]):
    """Mismatch of log-probabilities between server and model: the whole, its routing, and the rest."""

    measures = tuple(_METRICS.values())
    signature = "mismatch_tokens"

    def sums(self, subject: Scores) -> dict[str, Tensor]:
        """Return sums over the tokens of each request ``(B,)``."""
        scored = ~(subject.server.isnan() | subject.own.isnan() | subject.replayed.isnan())
        columns = {"mismatch_tokens": scored.sum(1)}
        for part, view in (("own", subject.own), ("rest", subject.replayed)):
            moved = (view - subject.server).where(scored, 0.0).double()
            columns[f"mismatch_{part}"] = moved.abs().sum(1)
            columns[f"mismatch_k3_{part}"] = (moved.expm1() - moved).sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over all tokens, their difference, and its share."""
        trials = columns["mismatch_tokens"]
        count = trials.astype(np.float64)
        found = []
        for name in _SAID:
            own, rest = (columns[f"{name}_{part}"].astype(np.float64) for part in ("own", "rest"))
            for part, above, below in (
                ("own", own, count),
                ("rest", rest, count),
                ("routing", own - rest, count),
                ("share", own - rest, own),
            ):
                found.append(_METRICS[name, part].raw(Ratio(above, below), trials))
        return found
