"""V-MoE's router: each token takes its k best experts by a noisy softmax.

Axes: G groups, S tokens per group, D width, E experts, K choices.

Source: V-MoE (Riquelme et al. 2021), section 2.2 and its released program.
"""

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.nn.dispatch import CapacityRule, plan_token_choice
from moeprobe.nn.initialisation import lecun_normal
from moeprobe.nn.routers.base import Decision, Router


class SoftmaxTokenChoice(Router):
    """Softmax token choice with noise: top-k of softmax(x W + (noise_std / E) · ε).

    The combine weight of a chosen expert is its softmax value over *all* experts; nothing is renormalised after
    the top-k. Computed in float32 under autocast: a bfloat16 softmax makes false ties.
    """

    token_local = True
    gates_sum_to_one = True

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int,
        *,
        noise_std: float = 1.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
        batch_priority: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise UserError(f"top_k must lie between 1 and the {num_experts} experts; got {top_k}.")
        self.gate = nn.Linear(width, num_experts, bias=False)
        lecun_normal(self.gate)
        self.num_experts = num_experts
        self.top_k = top_k
        self.noise_std = noise_std
        self.capacity = capacity or CapacityRule()
        self.eval_capacity = eval_capacity or CapacityRule()
        self.batch_priority = batch_priority

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with torch.autocast(tokens.device.type, enabled=False):
            logits = nn.functional.linear(_at_least_float32(tokens), _at_least_float32(self.gate.weight))
            clean_gates = logits.softmax(-1)
            noise_scale = 0.0 if noise is None else self.noise_std / self.num_experts
            noisy_logits = logits if noise is None else logits + noise_scale * noise
            gates = clean_gates if noise is None else noisy_logits.softmax(-1)
            selected = top_choices(gates, self.top_k)
            rule = self.capacity if self.training else self.eval_capacity
            capacity = rule.capacity(
                group_size=tokens.shape[1], num_experts=self.num_experts, top_k=self.top_k
            )
            plan = plan_token_choice(gates, selected, capacity=capacity, batch_priority=self.batch_priority)
        return Decision(logits, noisy_logits, gates, clean_gates, selected, noise_scale, plan)


def top_choices(scores: Tensor, top_k: int) -> Tensor:
    """Return the indices ``(..., K)`` of the largest scores, best first; ties go to the lower index."""
    if top_k == 1:
        return scores.argmax(-1, keepdim=True)
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
