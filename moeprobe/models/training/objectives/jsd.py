"""Consistency by Jensen-Shannon divergence, the alternative that the PRC paper reports in addition to its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training.objectives.base import (
    BatchViews,
    Objective,
    Term,
    balancing_terms,
    local_total,
    paired_gates,
)
from moeprobe.models.training.objectives.prc import paired_tokens

# Inside the logarithm and the denominator, as in the authors' program.
_EPSILON = 1e-7


@dataclass(frozen=True)
class Jsd(Objective):
    """Mean Jensen-Shannon divergence of corresponding patches' gates, with V-MoE's balancing losses.

    The weight is ours: the paper gives none, and its authors' program sums where this takes the mean.
    """

    weight: float = 5e-2
    importance_weight: float = 0.005
    load_weight: float = 0.005

    needs_pairs: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True

    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the divergence and the two balancing terms."""
        first, second, _ = paired_tokens(views)
        divergences = [
            mean_divergence(*paired_gates(decision.clean_gates, first, second), views.total)
            for decision in decisions.values()
        ]
        balancing = balancing_terms(
            decisions, importance_weight=self.importance_weight, load_weight=self.load_weight
        )
        return {"jsd": Term(torch.stack(divergences).sum(), self.weight)} | balancing


def mean_divergence(
    gates1: Tensor, gates2: Tensor, valid: Tensor, total: Callable[[Tensor], Tensor] = local_total
) -> Tensor:
    """Return the mean over pairs of ½ KL(p‖m) + ½ KL(q‖m), m = (p + q) / 2, for gates ``(B, M, E)``."""
    middle = (gates1 + gates2) / 2
    divergence = 0.5 * (_kl(gates1, middle) + _kl(gates2, middle))
    return total((divergence * valid).sum()) / total(valid.sum()).clamp_min(1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * torch.log(p / (q + _EPSILON) + _EPSILON)).sum(-1)
