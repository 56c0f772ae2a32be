"""Soft MoE: every slot of every expert holds a mixture of all tokens of an image.

Axes: G groups (images), S tokens per group, D width, E experts, C slots of an expert.

Source: Puigcerver et al. 2023, "From sparse to soft mixtures of experts", and its released program.
"""

import dataclasses

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.initialization import lecun_normal_
from moeprobe.models.nn.plans import CapacityRule, SoftPlan
from moeprobe.models.nn.routers.base import Decision, Router, ScoringRows
from moeprobe.models.nn.routers.rules.linear import (
    Logits,
    at_least_float32,
    chosen_by_nobody,
    without_autocast,
)
from moeprobe.routing.router_rows import Start

_EPSILON = 1e-6


class SoftMoe(Router):
    """Soft MoE: slots hold mixtures of tokens, tokens take back mixtures of the slots' outputs; nothing is chosen.

    Both mix by the logits X Φ: a slot by their softmax over the tokens, a token by their softmax over all slots. Tokens
    and Φ ``(D, E, C)`` are normalized over D, one scale is learned.

    Args:
        width: D.
        num_experts: E.
        num_tokens: tokens of an image, from which the number of slots follows; other numbers can be routed too.
        slots: C; None = capacity factor · tokens / experts, rounded, at least 1.
        noise_std: of the logits in training; not divided by E.
        capacity: the rule that ``slots`` follow from if they are not given.
        eval_capacity: the same; slots are parameters.

    Raises:
        UserError: no slot is asked for, or other slots in evaluation than in training.
    """

    token_local = False
    gates_sum_to_one = True
    fills_experts = True
    mixes_tokens = True
    default_capacity = CapacityRule(1.0, rounding="round", multiple_of=1)
    default_group_images = 1
    top_k = None

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        num_tokens: int,
        slots: int | None = None,
        noise_std: float = 0.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__()
        rule = capacity or self.default_capacity
        if (eval_capacity or rule) != rule:
            raise UserError(
                "The slots of soft MoE are parameters, the same in training and evaluation: "
                "set model.capacity_factor and leave out model.eval_capacity_factor."
            )
        if slots is None:
            slots = _slots(rule, num_tokens=num_tokens, num_experts=num_experts)
        elif slots < 1:
            raise UserError(f"An expert of soft MoE needs at least one slot; got {slots}.")
        else:
            rule = dataclasses.replace(rule, factor=slots * num_experts / num_tokens)
        self.num_experts, self.slots = num_experts, slots
        self.noise_std = noise_std
        self.capacity = self.eval_capacity = rule
        self.phi = nn.Parameter(torch.empty(width, num_experts, slots))
        lecun_normal_(self.phi, fan_in=width)
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def num_logits(self) -> int:
        """E·C."""
        return self.num_experts * self.slots

    def experts_per_token(self, group_size: int) -> float:
        """Return how often an expert runs per token: once per slot."""
        return self.num_logits / group_size

    def expert_rows(self) -> ScoringRows:
        """Return a row for each slot, before it is normalized."""
        return ScoringRows(self.phi.flatten(1).T, Start.lecun(len(self.phi)), is_choice_by_scores=False)

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E·C)``, None for none."""
        with without_autocast(tokens):
            inputs = _normalize(at_least_float32(tokens), dim=-1)
            slots = self.scale * _normalize(at_least_float32(self.phi), dim=0)
            clean = inputs @ slots.flatten(1).to(inputs.dtype)
            logits = Logits.of(clean, noise, scale=self.noise_std)
            shape = (*tokens.shape[:2], self.num_experts, self.slots)
            # All slots of an expert together are its share of a token.
            combine, clean_combine = (weights.view(shape) for weights in logits.softmax())
            gates = combine.sum(-1)
            clean_gates = gates if noise is None else clean_combine.sum(-1)
            plan = SoftPlan(dispatch=logits.noisy.softmax(1).view(shape), combine=combine)
            return chosen_by_nobody(logits, gates, clean_gates, plan)


def _slots(rule: CapacityRule, *, num_tokens: int, num_experts: int) -> int:
    """Return C by the rule, at least 1."""
    if rule.factor is None:
        raise UserError("The slots of soft MoE follow from a capacity factor; it cannot be none.")
    if num_tokens * rule.factor < num_experts:
        return rule.multiple_of or 1
    slots = rule.capacity(group_size=num_tokens, num_experts=num_experts, top_k=1)
    assert slots is not None
    return slots


def _normalize(values: Tensor, *, dim: int) -> Tensor:
    return values * (values.square().sum(dim, keepdim=True) + _EPSILON).rsqrt()
