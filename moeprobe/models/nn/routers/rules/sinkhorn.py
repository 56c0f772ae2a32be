"""Entropic transport between tokens and experts, and what the routers that choose by its plan have in common.

Axes: G groups, S tokens per group, E experts.

Source: Liu et al. 2024, "Routers in Vision Mixture of Experts", equation 8, as V-MoE's authors ran it: cost −logits,
ε = 1, 20 rounds. The algorithm: Sinkhorn 1964, Cuturi 2013.
"""

import math
from abc import ABC
from typing import Literal

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.rules.linear import LinearRouter, Logits

Combine = Literal["softmax", "plan"]


def transport_plan(logits: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Return the plan Π ``(G, S, E)`` that maximizes ⟨Π, logits⟩ + ε · entropy(Π), after so many rounds.

    A token sends 1 in all, an expert takes S / E of its group. Each round scales the columns and then the rows of
    log Π: so rows sum to 1, and columns to S / E as nearly as the rounds get. The gradient goes through all rounds.
    """
    plan = logits / epsilon
    for _ in range(iterations - 1):
        # Columns that sum to 1 instead of S / E: the rows, which come next, take any common factor away again.
        plan = plan.log_softmax(1).log_softmax(-1)
    return plan.log_softmax(1).softmax(-1)


class SinkhornRouter(LinearRouter, ABC):
    """A router whose choice is read off the transport plan of its logits, noisy ones in training.

    The combination takes its weights from the softmax of the logits, and the plan is then without gradient; or with
    ``combine="plan"`` from the plan, with the gradient through all rounds.

    Raises:
        UserError: ``epsilon`` is not positive or ``iterations`` is less than one.
    """

    token_local = False

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        top_k: int | None,
        noise_std: float,
        epsilon: float,
        iterations: int,
        combine: Combine,
        capacity: CapacityRule | None,
        eval_capacity: CapacityRule | None,
    ) -> None:
        super().__init__(
            width,
            num_experts,
            top_k=top_k,
            noise_std=noise_std,
            capacity=capacity,
            eval_capacity=eval_capacity,
        )
        if not 0 < epsilon < math.inf:
            raise UserError(f"Sinkhorn's epsilon must be a number above 0; got {epsilon}.")
        if iterations < 1:
            raise UserError(f"Sinkhorn's algorithm needs at least one iteration; got {iterations}.")
        self.epsilon = epsilon
        self.iterations = iterations
        self.combine = combine

    def _plan(self, logits: Tensor) -> Tensor:
        return transport_plan(logits, epsilon=self.epsilon, iterations=self.iterations)

    def _scores_and_gates(self, logits: Logits) -> tuple[Tensor, Tensor, Tensor]:
        """Return the plan of the noisy logits, without gradient, and the weights by the noisy and the clean ones."""
        if self.combine == "plan":
            gates = self._plan(logits.noisy)
            clean_gates = gates if logits.noisy is logits.clean else self._plan(logits.clean)
            return gates.detach(), gates, clean_gates
        with torch.no_grad():
            scores = self._plan(logits.noisy)
        clean_gates = logits.clean.softmax(-1)
        gates = clean_gates if logits.noisy is logits.clean else logits.noisy.softmax(-1)
        return scores, gates, clean_gates
