"""V-MoE's router: each token takes its k best experts by a noisy softmax.

Axes: G groups, S tokens per group, D width, E experts, K choices.

Source: V-MoE (Riquelme et al. 2021), section 2.2 and its released program.
"""

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Limits, LinearRouter, choose_by_softmax, without_autocast


class SoftmaxTokenChoice(LinearRouter):
    """Softmax token choice with noise: top-k of softmax(x W + (noise_std / E) · ε).

    The combine weight of a chosen expert is its softmax value over *all* experts; nothing is renormalized after
    the top-k, unless ``renormalise`` asks for it.

    Computed in float32 under autocast: a bfloat16 softmax makes false ties.
    """

    token_local = True

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        noise_std: float = 1.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
        batch_priority: bool = False,
        renormalise: bool = False,
    ) -> None:
        super().__init__(width, num_experts, Limits(top_k, capacity, eval_capacity, noise_std))
        self.batch_priority = batch_priority
        self.renormalise = renormalise

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        assert self.top_k is not None
        with without_autocast(tokens):
            return choose_by_softmax(
                self._logits(tokens, noise),
                top_k=self.top_k,
                capacity=self._places(tokens.shape[1]),
                batch_priority=self.batch_priority,
                renormalise=self.renormalise,
            )
