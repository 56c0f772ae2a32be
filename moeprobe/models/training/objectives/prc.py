"""Pairwise Router Consistency, as the paper defines it.

S = E/N Σ r(x1, p1) r(x2, p2)ᵀ over the N pairs of corresponding patches of the whole batch (equation 3), and
L = λ_diag/E Σ_i (1 − S_ii)² + λ_off/(E(E−1)) Σ_{i≠j} S_ij² (equation 4). Balancing losses are not used with it.

The paper's r includes the router's noise (equation 1); its authors' program takes the clean softmax, as is done here
but with ``noisy``.

Source: Kada et al. 2025, "Robustifying Routers Against Input Perturbations for Sparse Mixture-of-Experts Vision
Transformers", section III-B.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.inputs import geometry
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training.objectives.base import BatchViews, Objective, Term, local_total, paired_gates


@dataclass(frozen=True)
class Prc(Objective):
    """Pairwise Router Consistency: the E x E correlation matrix of paired gates should be the identity.

    With ``noisy`` the gates are those with the router's noise, as the paper writes them: each view has its own draw.
    """

    diagonal_weight: float = 5e-3
    offdiagonal_weight: float = 5e-2
    noisy: bool = False

    needs_pairs: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True

    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the diagonal and the off-diagonal term."""
        first, second, swapped = paired_tokens(views)
        diagonal, offdiagonal = [], []
        for decision in decisions.values():
            gates = decision.gates if self.noisy else decision.clean_gates
            gates1, gates2, valid = paired_gates(gates, first, second)
            # View 1 of the paper is the one with the smaller source area.
            exchange = torch.from_numpy(swapped).to(valid.device)[:, None, None]
            small, large = torch.where(exchange, gates2, gates1), torch.where(exchange, gates1, gates2)
            matrix, pairs = correlation(small, large, valid, views.total)
            terms = consistency_terms(matrix)
            # Without a pair S is zero and would be blamed for it.
            diagonal.append(torch.where(pairs > 0, terms[0], 0.0))
            offdiagonal.append(terms[1])
        return {
            "prc_diagonal": Term(torch.stack(diagonal).sum(), self.diagonal_weight),
            "prc_offdiagonal": Term(torch.stack(offdiagonal).sum(), self.offdiagonal_weight),
        }


def paired_tokens(views: BatchViews) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the token of each view in every pair ``(B, P)``, -1 = none, and whether view 2 is the smaller one."""
    pairs = geometry.correspond(
        views.to_source[0], views.to_source[1], grid=views.grid, source_size=views.source_size
    )
    tokens = [
        np.where(side >= 0, side + views.num_prefix_tokens, -1) for side in (pairs.reference, pairs.view)
    ]
    return tokens[0], tokens[1], pairs.view_first


def correlation(
    gates1: Tensor, gates2: Tensor, valid: Tensor, total: Callable[[Tensor], Tensor] = local_total
) -> tuple[Tensor, Tensor]:
    """Return S ``(E, E)`` of equation 3 from gates ``(B, M, E)``, and the number of pairs; without one, S is zero.

    Outer products and pairs are summed by ``total`` over the whole batch, of which the gates may be a part.
    """
    num_experts = gates1.shape[-1]
    outer = total(gates1.flatten(0, 1).T @ gates2.flatten(0, 1))
    pairs = total(valid.sum())
    return num_experts / pairs.clamp_min(1) * outer, pairs


def consistency_terms(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of (1 − S_ii)² and of S_ij², i ≠ j: equation 4 without its weights."""
    num_experts = len(matrix)
    diagonal = (1 - matrix.diagonal()).square().mean()
    off = matrix - torch.diag(matrix.diagonal())
    return diagonal, off.square().sum() / (num_experts * (num_experts - 1))
