"""Expert choice: each expert takes the tokens that score highest for it.

Axes: G groups, S tokens per group, D width, E experts, C tokens that an expert takes of a group.

Source: Zhou et al. 2022; the router of V-MoE's released program that lets experts choose.
"""

from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import Limits, LinearRouter, choose_by_experts, without_autocast


class SoftmaxExpertChoice(LinearRouter):
    """Softmax expert choice: every expert takes its C best tokens of a group by softmax(x W + (noise_std / E) · ε).

    A token may be taken by several experts or by none. All experts are equally busy, so there is nothing to balance.
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
        noise_std: float = 1.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(width, num_experts, Limits(None, capacity, eval_capacity, noise_std))

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with without_autocast(tokens):
            logits = self._logits(tokens, noise)
            gates, clean_gates = logits.softmax()
            capacity = self._places(tokens.shape[1])
            assert capacity is not None
            return choose_by_experts(
                logits, gates=gates, clean_gates=clean_gates, scores=None, capacity=capacity
            )
