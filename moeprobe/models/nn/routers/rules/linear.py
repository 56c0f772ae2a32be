"""What routers whose experts have limited room, and those with a linear gate, have in common.

Whatever the logits are, tokens take their best experts of a softmax, or experts take their best tokens.

Axes: G groups, S tokens per group, D width, E experts, K choices, C tokens that an expert takes of a group.
"""

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.initialization import lecun_normal
from moeprobe.models.nn.plans import (
    CapacityRule,
    DispatchPlan,
    FullPlan,
    SoftPlan,
    chosen_by_experts,
    plan_expert_choice,
    plan_token_choice,
)
from moeprobe.models.nn.routers.base import Decision, Router, ScoringRows
from moeprobe.routing.router_rows import Start


@dataclass(frozen=True)
class Logits:
    """Scores of tokens for experts: ``clean`` and ``noisy`` ``(G, S, E)``, and the noise's standard deviation."""

    clean: Tensor
    noisy: Tensor
    noise_scale: float

    @classmethod
    def of(cls, clean: Tensor, noise: Tensor | None, *, scale: float) -> "Logits":
        """Return logits with standard normal noise times ``scale``; None = without noise."""
        return cls(clean, clean, 0.0) if noise is None else cls(clean, clean + scale * noise, scale)

    def softmax(self) -> tuple[Tensor, Tensor]:
        """Return the softmax of the noisy and of the clean ones; without noise they are one tensor."""
        clean = self.clean.softmax(-1)
        return clean if self.noisy is self.clean else self.noisy.softmax(-1), clean


@dataclass(frozen=True)
class Limits:
    """What limits a sparse router: choices of a token, capacities in training and in evaluation, and noise.

    Attributes:
        top_k: choices of a token; None where experts choose.
        capacity: in training; None = the router's own.
        eval_capacity: in evaluation; None = the router's own.
        noise_std: standard deviation of the noise on the logits, times E.
    """

    top_k: int | None
    capacity: CapacityRule | None
    eval_capacity: CapacityRule | None
    noise_std: float = 0.0


class LimitedRouter(Router, ABC):
    """A sparse router: each token has at most so many experts, each expert at most so many tokens.

    Raises:
        UserError: ``top_k`` is not between 1 and the number of experts, or a capacity is missing that the router
            cannot do without.
    """

    gates_sum_to_one = True

    def __init__(self, num_experts: int, limits: Limits) -> None:
        super().__init__()
        top_k = limits.top_k
        if top_k is not None and not 1 <= top_k <= num_experts:
            raise UserError(f"top_k must be between 1 and the {num_experts} experts; got {top_k}.")
        self.num_experts, self.top_k, self.noise_std = num_experts, top_k, limits.noise_std
        missing = self.default_capacity if self.fills_experts else CapacityRule()
        self.capacity = limits.capacity or missing
        self.eval_capacity = limits.eval_capacity or missing
        if top_k is None and None in (self.capacity.factor, self.eval_capacity.factor):
            raise UserError(
                "Here the experts choose their tokens, so they need a capacity factor; it cannot be none."
            )


class LinearRouter(LimitedRouter, ABC):
    """A router whose logits are x W, with noise of standard deviation noise_std / E in training."""

    def __init__(self, width: int, num_experts: int, limits: Limits) -> None:
        super().__init__(num_experts, limits)
        self.gate = nn.Linear(width, num_experts, bias=False)
        lecun_normal(self.gate)

    def expert_rows(self) -> ScoringRows:
        """Return the rows of W."""
        return ScoringRows(self.gate.weight, Start.lecun(self.gate.in_features))

    def _logits(self, tokens: Tensor, noise: Tensor | None) -> Logits:
        """Return the logits of tokens ``(G, S, D)`` in float32 (float64 tokens: in float64). Call without autocast."""
        clean = nn.functional.linear(at_least_float32(tokens), at_least_float32(self.gate.weight))
        return Logits.of(clean, noise, scale=self.noise_std / self.num_experts)


def without_autocast(tokens: Tensor) -> torch.autocast:
    """Return the context in which routers compute: a bfloat16 softmax makes false ties."""
    return torch.autocast(tokens.device.type, enabled=False)


def top_choices(scores: Tensor, top_k: int) -> Tensor:
    """Return the indices ``(..., K)`` of the largest scores, best first; ties go to the lower index."""
    if top_k == 1:
        return scores.argmax(-1, keepdim=True)
    if scores.is_cpu and top_k < scores.shape[-1]:
        # Quicker than to sort all, but says nothing about ties (nor about NaN); another device would be waited for.
        values, indices = scores.detach().topk(top_k + 1)
        if bool((values[..., 1:] < values[..., :-1]).all()):
            return indices[..., :top_k]
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]


def at_least_float32(values: Tensor) -> Tensor:
    """Return float64 values as they are, others in float32."""
    return values if values.dtype == torch.float64 else values.float()


def choose_by_softmax(
    logits: Logits, *, top_k: int, capacity: int | None, batch_priority: bool, renormalise: bool
) -> Decision:
    """Return the decision of top-k of softmax(``logits``).

    A chosen expert's weight is its share of *all* experts, or with ``renormalise`` of the chosen ones.

    Args:
        logits: ``(G, S, E)``, clean and noisy; the choice and the weights follow the noisy ones.
        top_k: K.
        capacity: C, None without limit.
        batch_priority: as in ``plan_token_choice``.
        renormalise: as in ``plan_token_choice``.
    """
    gates, clean_gates = logits.softmax()
    selected = top_choices(gates, top_k)
    plan = plan_token_choice(
        gates, selected, capacity=capacity, batch_priority=batch_priority, renormalise=renormalise
    )
    return chosen_by_tokens(logits, gates, clean_gates, selected, plan)


def chosen_by_tokens(
    logits: Logits,
    gates: Tensor,
    clean_gates: Tensor,
    selected: Tensor,
    plan: DispatchPlan,
    *,
    scores: Tensor | None = None,
    transport: Tensor | None = None,
) -> Decision:
    """Return the decision of tokens that chose ``selected`` experts ``(G, S, K)``; the rest as in ``Decision``."""
    return Decision(
        logits=logits.clean,
        noisy_logits=logits.noisy,
        gates=gates,
        clean_gates=clean_gates,
        scores=scores,
        selected=selected,
        processed=plan.kept.view_as(selected),
        top_k=selected.shape[-1],
        noise_scale=logits.noise_scale,
        plan=plan,
        transport=transport,
    )


def chosen_by_nobody(
    logits: Logits, gates: Tensor, clean_gates: Tensor, plan: SoftPlan | FullPlan
) -> Decision:
    """Return the decision where every expert gets a share of every token."""
    nothing = torch.empty(*gates.shape[:2], 0, dtype=torch.long, device=gates.device)
    return Decision(
        logits=logits.clean,
        noisy_logits=logits.noisy,
        gates=gates,
        clean_gates=clean_gates,
        scores=None,
        selected=nothing,
        processed=nothing.bool(),
        top_k=None,
        noise_scale=logits.noise_scale,
        plan=plan,
    )


def choose_by_experts(
    logits: Logits, *, gates: Tensor, clean_gates: Tensor, scores: Tensor | None, capacity: int
) -> Decision:
    """Return the decision of experts that take the C tokens of a group that score highest for them.

    Args:
        logits: ``(G, S, E)``, clean and noisy.
        gates: ``(G, S, E)`` weights of the combination.
        clean_gates: likewise, without noise.
        scores: ``(G, S, E)`` what the experts choose by; None = the gates.
        capacity: C.
    """
    chosen_by = gates if scores is None else scores
    plan = plan_expert_choice(chosen_by, gates, capacity=capacity)
    selected = chosen_by_experts(plan, chosen_by)
    return Decision(
        logits=logits.clean,
        noisy_logits=logits.noisy,
        gates=gates,
        clean_gates=clean_gates,
        scores=scores,
        selected=selected,
        processed=selected >= 0,
        top_k=None,
        noise_scale=logits.noise_scale,
        plan=plan,
    )
