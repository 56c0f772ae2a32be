"""Sinkhorn token choice: each token takes its k best experts by a plan that loads all experts evenly.

Axes: G groups, S tokens per group, D width, E experts, K choices.

Source: Kool et al. 2021, Clark et al. 2022; Liu et al. 2024, section 2.2, with the particulars of V-MoE's program.
"""

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule, plan_token_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Limits, chosen_by_tokens, top_choices, without_autocast
from moeprobe.models.nn.routers.rules.transport import Combine, SinkhornRouter


class SinkhornTokenChoice(SinkhornRouter):
    """Sinkhorn token choice: top-k of the entropic transport plan of x W + (noise_std / E) · ε.

    The plan's columns are even, so there is nothing to balance; a capacity still drops what does not fit, since the
    plan's largest entries need not be even. The weights of the combination are softmax(x W), without the noise, or
    the plan's own.
    """

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
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
            Limits(top_k, capacity, eval_capacity, noise_std),
            epsilon=epsilon,
            iterations=iterations,
            combine=combine,
        )

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with without_autocast(tokens):
            logits = self._logits(tokens, noise)
            scores, gates, clean_gates = self._scores_and_gates(logits)
            if self.combine == "softmax":
                gates = clean_gates
            assert self.top_k is not None
            selected = top_choices(scores, self.top_k)
            plan = plan_token_choice(gates, selected, capacity=self._places(tokens.shape[1]))
            return chosen_by_tokens(logits, gates, clean_gates, selected, plan, scores=scores)
