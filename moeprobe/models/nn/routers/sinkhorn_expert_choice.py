"""Sinkhorn expert choice: each expert takes the tokens that score highest for it in a plan that forgets no token.

Axes: G groups, S tokens per group, D width, E experts, C tokens that an expert takes of a group.

Source: Liu et al. 2024, section 2.4, with the particulars of V-MoE's program.
"""

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Limits, choose_by_experts, without_autocast
from moeprobe.models.nn.routers.rules.transport import Combine, SinkhornRouter


class SinkhornExpertChoice(SinkhornRouter):
    """Sinkhorn expert choice: every expert takes its C best tokens by the transport plan of x W + (noise_std / E) · ε.

    Each token has a share of 1 in the plan, so fewer tokens than with the softmax are taken by nobody. The weights of
    the combination are the softmax of the same noisy logits, or the plan's own.
    """

    fills_experts = True
    default_capacity = CapacityRule(1.0)
    default_group_images = 1

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        noise_std: float = 1.0,
        epsilon: float = 1.0,
        iterations: int = 20,
        combine: Combine = "softmax",
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(
            width,
            num_experts,
            Limits(None, capacity, eval_capacity, noise_std),
            epsilon=epsilon,
            iterations=iterations,
            combine=combine,
        )

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with without_autocast(tokens):
            logits = self._logits(tokens, noise)
            scores, gates, clean_gates = self._scores_and_gates(logits)
            capacity = self._places(tokens.shape[1])
            assert capacity is not None
            return choose_by_experts(
                logits, gates=gates, clean_gates=clean_gates, scores=scores, capacity=capacity
            )
