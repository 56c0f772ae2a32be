"""What routers whose experts have limited room, and those with a linear gate, have in common.

Axes: G groups, S tokens per group, D width, E experts, K choices.
"""

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.initialization import lecun_normal
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Router


@dataclass(frozen=True)
class Logits:
    """Scores of tokens for experts: ``clean`` and ``noisy`` ``(G, S, E)``, and the noise's standard deviation."""

    clean: Tensor
    noisy: Tensor
    noise_scale: float


class LimitedRouter(Router, ABC):
    """A sparse router: each token has at most so many experts, each expert at most so many tokens.

    Raises:
        UserError: ``top_k`` is not between 1 and the number of experts, or a capacity is missing that the router
            cannot do without.
    """

    gates_sum_to_one = True

    def __init__(
        self,
        num_experts: int,
        *,
        top_k: int | None,
        noise_std: float,
        capacity: CapacityRule | None,
        eval_capacity: CapacityRule | None,
    ) -> None:
        super().__init__()
        if top_k is not None and not 1 <= top_k <= num_experts:
            raise UserError(f"top_k must be between 1 and the {num_experts} experts; got {top_k}.")
        self.num_experts = num_experts
        self.top_k = top_k
        self.noise_std = noise_std
        missing = self.default_capacity if self.fills_experts else CapacityRule()
        self.capacity = capacity or missing
        self.eval_capacity = eval_capacity or missing
        if top_k is None and None in (self.capacity.factor, self.eval_capacity.factor):
            raise UserError(
                "Here the experts choose their tokens, so they need a capacity factor; it cannot be none."
            )


class LinearRouter(LimitedRouter, ABC):
    """A router whose logits are x W, with noise of standard deviation noise_std / E in training."""

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        top_k: int | None,
        noise_std: float,
        capacity: CapacityRule | None,
        eval_capacity: CapacityRule | None,
    ) -> None:
        super().__init__(
            num_experts, top_k=top_k, noise_std=noise_std, capacity=capacity, eval_capacity=eval_capacity
        )
        self.gate = nn.Linear(width, num_experts, bias=False)
        lecun_normal(self.gate)

    def _logits(self, tokens: Tensor, noise: Tensor | None) -> Logits:
        """Return the logits of tokens ``(G, S, D)`` in float32 (float64 tokens: in float64). Call without autocast."""
        clean = nn.functional.linear(at_least_float32(tokens), at_least_float32(self.gate.weight))
        if noise is None:
            return Logits(clean, clean, 0.0)
        scale = self.noise_std / self.num_experts
        return Logits(clean, clean + scale * noise, scale)


def without_autocast(tokens: Tensor) -> torch.autocast:
    """Return the context in which routers compute: a bfloat16 softmax makes false ties."""
    return torch.autocast(tokens.device.type, enabled=False)


def top_choices(scores: Tensor, top_k: int) -> Tensor:
    """Return the indices ``(..., K)`` of the largest scores, best first; ties go to the lower index."""
    if top_k == 1:
        return scores.argmax(-1, keepdim=True)
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]


def at_least_float32(values: Tensor) -> Tensor:
    """Return float64 values as they are, others in float32."""
    return values if values.dtype == torch.float64 else values.float()
