"""Sparse expert choice: experts choose by a transport plan with at most C entries per expert.

Axes: G groups, S tokens per group, D width, E experts, C tokens that an expert takes of a group.

Source: Liu et al. 2024, "Routers in Vision Mixture of Experts", section 2.5; V-MoE's released program.
"""

import dataclasses
from typing import Literal

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Limits, LinearRouter, choose_by_experts, without_autocast
from moeprobe.models.nn.routers.rules.transport import SparseTransport


class SparseExpertChoice(LinearRouter):
    """Sparse expert choice: every expert takes its C best tokens by a plan Π with at most C entries per expert.

    Π maximizes ⟨Π, softmax(x W)⟩ − γ/2 ‖Π‖²; an expert's column sums to S/E, a token's row to about 1. The combination
    weighs by the softmax, without gradient through the plan, or with ``combine="plan"`` by the plan. There is no noise.
    Experts take C tokens also where the plan gives them fewer; ties go to the earlier token.
    """

    token_local = False
    fills_experts = True
    default_capacity = CapacityRule(1.0)
    default_group_images = 1

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        gamma: float = 1.0,
        learning_rate: float = 1e-2,
        iterations: int = 20,
        combine: Literal["softmax", "plan"] = "softmax",
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(width, num_experts, Limits(None, capacity, eval_capacity))
        self.transport = SparseTransport(gamma, learning_rate, iterations)
        self.combine = combine
        # A token's row of the plan sums to one only where the steps have taken it there.
        self.gates_sum_to_one = combine == "softmax"

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; there is no noise."""
        if noise is not None:
            raise ValueError("A router by sparse transport takes no noise.")
        group_size = tokens.shape[1]
        with without_autocast(tokens):
            logits = self._logits(tokens, None)
            softmax, _ = logits.softmax()
            similarity = softmax if self.combine == "plan" else softmax.detach()
            capacity = self._places(group_size)
            assert capacity is not None
            plan = self.transport.plan(
                similarity.transpose(1, 2), row_sum=group_size / self.num_experts, max_nonzeros=capacity
            ).transpose(1, 2)
            gates, scores = (plan, None) if self.combine == "plan" else (softmax, plan)
            decision = choose_by_experts(
                logits, gates=gates, clean_gates=gates, scores=scores, capacity=capacity
            )
        return dataclasses.replace(decision, transport=plan)
