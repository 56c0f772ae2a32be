"""Pairwise Router Consistency as its authors' program computes it.

It differs from the paper in the diagonal: instead of (1 − S_ii)² it takes, for every patch slot j of view 1 and every
expert e, D_je = E/N Σ_batch p1_e p2_e (the sum runs over the batch alone) and averages (D_je − 1)². With N about the
batch times the slots, 1 is out of reach, so the term acts almost linearly as minus the similarity. Its
correspondence has rules of its own too (``geometry.correspond_released``), and class tokens can form a pair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training.objectives.base import BatchViews, Objective, Term, local_total, paired_gates
from moeprobe.models.training.objectives.prc import consistency_terms, correlation


@dataclass(frozen=True)
class PrcReleased(Objective):
    """Pairwise Router Consistency as released: the diagonal is taken per patch slot, and CLS may be a pair."""

    diagonal_weight: float = 5e-3
    offdiagonal_weight: float = 5e-2
    class_pair: bool = True

    needs_pairs: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True

    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the diagonal and the off-diagonal term.

        Raises:
            UserError: ``class_pair`` is asked of a model without a class token.
        """
        if self.class_pair and views.num_prefix_tokens == 0:
            raise UserError("The model has no class token to pair: set objective.class_pair to false.")
        pairs = geometry.correspond_released(
            views.to_source[0],
            views.to_source[1],
            grid=views.grid,
            num_prefix_tokens=views.num_prefix_tokens,
            class_pair=self.class_pair,
        )
        diagonal, offdiagonal = [], []
        for decision in decisions.values():
            gates1, gates2, valid = paired_gates(decision.clean_gates, pairs.reference, pairs.view)
            exchange = torch.from_numpy(pairs.view_first).to(valid.device)[:, None, None]
            small, large = torch.where(exchange, gates2, gates1), torch.where(exchange, gates1, gates2)
            diagonal.append(slot_diagonal(small, large, valid, views.total))
            offdiagonal.append(consistency_terms(correlation(small, large, valid, views.total)[0])[1])
        return {
            "prc_diagonal": Term(torch.stack(diagonal).sum(), self.diagonal_weight),
            "prc_offdiagonal": Term(torch.stack(offdiagonal).sum(), self.offdiagonal_weight),
        }


def slot_diagonal(
    gates1: Tensor, gates2: Tensor, valid: Tensor, total: Callable[[Tensor], Tensor] = local_total
) -> Tensor:
    """Return the mean of (D_je − 1)² for gates ``(B, M, E)`` that are zero where there is no pair."""
    products, pairs = total((gates1 * gates2).sum(0)), total(valid.sum())
    similarity = gates1.shape[-1] / pairs.clamp_min(1) * products
    return torch.where(pairs > 0, (similarity - 1).square().mean(), 0.0)
