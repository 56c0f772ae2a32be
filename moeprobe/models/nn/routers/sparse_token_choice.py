"""Sparse token choice: tokens choose by a transport plan with at most k entries per token.

Axes: G groups, S tokens per group, D width, E experts, K choices.

Source: Liu, Puigcerver, Blondel 2023, "Sparsity-constrained optimal transport"; V-MoE's released program.
"""

from typing import Literal

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule, plan_token_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import (
    Limits,
    LinearRouter,
    chosen_by_tokens,
    top_choices,
    without_autocast,
)
from moeprobe.models.nn.routers.rules.transport import SparseTransport


class SparseTokenChoice(LinearRouter):
    """Sparse token choice: each token takes its k best experts by a plan Π with at most k entries per token.

    Π maximizes ⟨Π, softmax(x W)⟩ − γ/2 ‖Π‖²; a token's row sums to 1, an expert's column to about S/E. The combination
    weighs by the softmax, without gradient through the plan, or with ``combine="plan"`` by the plan. There is no noise.
    Tokens choose k experts also where the plan gives them fewer; ties go to the lower expert.
    """

    token_local = False

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        gamma: float = 1.0,
        learning_rate: float = 1e-2,
        iterations: int = 20,
        combine: Literal["softmax", "plan"] = "softmax",
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
        batch_priority: bool = False,
    ) -> None:
        super().__init__(width, num_experts, Limits(top_k, capacity, eval_capacity))
        self.transport = SparseTransport(gamma, learning_rate, iterations)
        self.combine = combine
        self.batch_priority = batch_priority

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; there is no noise."""
        if noise is not None:
            raise ValueError("A router by sparse transport takes no noise.")
        assert self.top_k is not None
        with without_autocast(tokens):
            logits = self._logits(tokens, None)
            softmax, _ = logits.softmax()
            similarity = softmax if self.combine == "plan" else softmax.detach()
            plan = self.transport.plan(similarity, row_sum=1.0, max_nonzeros=self.top_k)
            gates, scores = (plan, None) if self.combine == "plan" else (softmax, plan)
            selected = top_choices(plan, self.top_k)
            dispatch = plan_token_choice(
                gates, selected, capacity=self._places(tokens.shape[1]), batch_priority=self.batch_priority
            )
            return chosen_by_tokens(logits, gates, gates, selected, dispatch, scores=scores, transport=plan)
