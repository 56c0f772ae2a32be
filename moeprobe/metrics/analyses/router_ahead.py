"""Does the next router already know, a layer earlier, which experts it will choose?

The router of an MoE layer is applied to the input of the router of the MoE layer before. The m experts that it ranks
highest there are loaded ahead. Beside the share of the choices that are found stands what needs no knowledge of the
input: the m busiest experts of other inputs, and an even router.

Axes: B inputs, L layers, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.busiest import BusiestElsewhere
from moeprobe.metrics.stats.statistic import Share
from moeprobe.metrics.stats.units import UNIT_NUMBER
from moeprobe.metrics.token_kinds import EXPERTS

if TYPE_CHECKING:
    from torch import Tensor

PREFETCH_ROUTER = Metric(
    "prefetch_router",
    about="share of the chosen experts that are among the m experts which the layer's router ranks highest for the "
    "input of the router of the MoE layer before; m is in the column severity",
    label="found ahead, from router",
    short="router",
    noun="recall of experts predicted by the next router",
    nulls=("busiest", "even"),
    rank=53,
    severity="loaded",
)


@dataclass(frozen=True)
class AheadHits:
    """What routers that are applied a layer earlier find.

    Attributes:
        hits: ``(B,)`` choices that are found.
        uses: ``(B, L, E)`` int32, tokens that choose each expert.
        loaded: m.
    """

    hits: Tensor
    uses: Tensor
    loaded: int


class RouterAhead(ModelAnalysis[AheadHits]):
    """Share of the chosen experts that the next router finds a layer earlier.

    Six inputs choose expert 0 twice and expert 1 once each; five of six choices are found: 5/6 of the distance from the
    busiest expert, 0, which 2/3 choose, to 1 would be κ = (5/6 − 2/3) / (1 − 2/3).

    >>> import torch
    >>> from moeprobe.metrics.analyses.router_ahead import AheadHits, RouterAhead
    >>> from moeprobe.metrics.by_hand import numbers
    >>> uses = torch.tensor([[[2, 1]]]).expand(6, 1, 2)
    >>> value = numbers(RouterAhead(), AheadHits(torch.tensor([3, 3, 3, 2, 2, 2]), uses, 1))
    >>> [value[f"prefetch_router{name}"] for name in ("", "_chance busiest", "_kappa busiest", "_chance even")]
    [0.833, 0.667, 0.5, 0.5]
    """

    measures = (PREFETCH_ROUTER,)
    signature = "ahead_choices"

    def sums(self, subject: AheadHits) -> dict[str, Tensor]:
        """Return hits, choices and uses per input."""
        import torch

        inputs, _, num_experts = subject.uses.shape
        choices = subject.uses.sum((1, 2))
        return {
            "ahead_hits": subject.hits,
            "ahead_choices": choices,
            "ahead_even": choices.double() * (subject.loaded / num_experts),
            "ahead_uses": subject.uses.flatten(1),
            EXPERTS: torch.full((inputs,), num_experts),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the recall beside both levels."""
        choices, num_experts = columns["ahead_choices"], int(columns[EXPERTS].max(initial=1))
        trials, even = choices.astype(np.float64), columns["ahead_even"].astype(np.float64)
        uses = columns["ahead_uses"].astype(np.float64).reshape(len(choices), -1, num_experts)
        loaded = round(num_experts * float(even.sum()) / max(float(trials.sum()), 1.0))
        recall = Share(columns["ahead_hits"].astype(np.float64), trials)
        unit = columns[UNIT_NUMBER].astype(np.int64) if UNIT_NUMBER in columns else None
        busiest = BusiestElsewhere(uses, loaded, unit)
        # A single input, or unit, has no others.
        compared = choices if busiest.has_others else np.zeros_like(choices)
        return [
            PREFETCH_ROUTER.raw(recall, choices),
            *PREFETCH_ROUTER.chance_and_kappa("busiest", busiest, recall, compared),
            *PREFETCH_ROUTER.chance_and_kappa("even", Share(even, trials), recall, choices),
        ]
