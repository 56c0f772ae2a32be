"""From a router's choices to a plan: which token goes to which slot of which expert.

Axes: G groups, S tokens per group, E experts, K choices per token, C capacity per group and expert, N = G·S·K
assignments.

The plan of a sparse router is an index form: one entry per assignment, work proportional to N, where the papers write a
dense ``(G, S, E, C)``. Where every slot holds a share of every token (soft MoE), the dense form is the plan:
``SoftPlan``. Where every expert runs on every token, their weights are: ``FullPlan``.

Source: V-MoE (Riquelme et al. 2021), section 2 and its released program.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeprobe.errors import UserError


@dataclass(frozen=True)
class CapacityRule:
    """How many tokens of a group one expert takes: ``factor`` x the balanced load; None = all that come.

    ``rounding`` is "ceil" or "round" (half to even) or "tutel" (that library's: K · ⌊factor · ⌈S / E⌉⌋); the result is
    then raised to a multiple of ``multiple_of``.
    """

    factor: float | None = None
    rounding: str = "ceil"
    multiple_of: int = 4

    def capacity(self, *, group_size: int, num_experts: int, top_k: int) -> int | None:
        """Return C for groups of ``group_size`` tokens, None without limit.

        Raises:
            UserError: the capacity would be less than one token.
        """
        if self.factor is None:
            return None
        # The order of the float operations is V-MoE's: another order rounds some cases up by one.
        exact = group_size * top_k * self.factor / num_experts
        if self.rounding == "tutel":
            capacity = top_k * int(self.factor * -(-group_size // num_experts))
        else:
            capacity = math.ceil(exact) if self.rounding == "ceil" else round(exact)
        if capacity < 1:
            raise UserError(
                f"A capacity factor of {self.factor} leaves no room: {group_size} tokens x {top_k} choices over "
                f"{num_experts} experts give a capacity of {capacity}; raise the factor or the group size."
            )
        return capacity + (-capacity) % self.multiple_of if self.multiple_of else capacity


@dataclass(frozen=True)
class DispatchPlan:
    """Which token goes to which slot of which expert, and with what weight it comes back.

    One entry per assignment, token by token, first choice first (where experts choose: expert by expert):

    Attributes:
        token: ``(N,)`` number of the token over all groups (group · S + position).
        expert: ``(N,)``.
        slot: ``(N,)`` place in the expert's buffer of this group, in the order of arrival; may exceed C. None where
            nothing limits the experts: then nobody waits.
        weight: ``(N,)`` combine weight, 0 where dropped.
        kept: ``(N,)`` whether there was capacity.
        top_k: K, where every token has as many entries, one after the other; None where experts choose.
    """

    token: Tensor
    expert: Tensor
    slot: Tensor | None
    weight: Tensor
    kept: Tensor
    num_groups: int
    group_size: int
    num_experts: int
    capacity: int | None
    top_k: int | None = None

    def scale(self, factors: Tensor) -> "DispatchPlan":
        """Return the plan with each expert's weights multiplied by its factor ``(E,)``."""
        return replace(self, weight=self.weight * factors[self.expert])


@dataclass(frozen=True)
class SoftPlan:
    """Every slot holds a mixture of the group's tokens, every token takes back a mixture of the slots' outputs.

    Attributes:
        dispatch: ``(G, S, E, C)`` share of a token in a slot.
        combine: ``(G, S, E, C)`` weight of a slot's output for a token.
    """

    dispatch: Tensor
    combine: Tensor

    def scale(self, factors: Tensor) -> "SoftPlan":
        """Return the plan with each expert's weights multiplied by its factor ``(E,)``."""
        return replace(self, combine=self.combine * factors[:, None])


@dataclass(frozen=True)
class FullPlan:
    """Every expert runs on every token.

    Attributes:
        weight: ``(G, S, E)`` of an expert's output for a token.
    """

    weight: Tensor

    def scale(self, factors: Tensor) -> "FullPlan":
        """Return the plan with each expert's weights multiplied by its factor ``(E,)``."""
        return FullPlan(self.weight * factors)


def plan_token_choice(
    gates: Tensor,
    selected: Tensor,
    *,
    capacity: int | None,
    batch_priority: bool = False,
    renormalise: bool = False,
) -> DispatchPlan:
    """Plan "top experts per token": all first choices are served before any second choice, each group alone.

    Args:
        gates: ``(G, S, E)`` weights of the combination.
        selected: ``(G, S, K)`` chosen experts, best first.
        capacity: C, None without limit.
        batch_priority: serve tokens by their largest gate (BPR) instead of in their order; ties by position.
        renormalise: divide a token's weights by the sum of those it has chosen, whether or not these find room.
    """
    if capacity is None:
        slot, has_slot = None, torch.ones_like(selected, dtype=torch.bool)
    else:
        slot = _arrival(selected, gates.shape[-1], served_by=gates.amax(-1) if batch_priority else None)
        has_slot = slot < capacity
    return _plan(gates, selected, slot, has_slot, capacity, renormalise=renormalise)


def plan_expert_choice(scores: Tensor, gates: Tensor, *, capacity: int) -> DispatchPlan:
    """Plan "top tokens per expert": each expert takes its ``capacity`` best tokens of every group, or all there are.

    Args:
        scores: ``(G, S, E)`` what an expert chooses by; ties go to the earlier token.
        gates: ``(G, S, E)`` weights of the combination.
        capacity: C; cut to S.
    """
    num_groups, group_size, num_experts = scores.shape
    capacity = min(capacity, group_size)
    # Which tokens are taken has no gradient; their gates have.
    order = scores.detach().transpose(1, 2).sort(dim=-1, descending=True, stable=True).indices[..., :capacity]
    group = torch.arange(num_groups, device=scores.device)[:, None, None]
    expert = torch.arange(num_experts, device=scores.device)[:, None].expand_as(order)
    return DispatchPlan(
        token=(group * group_size + order).flatten(),
        expert=expert.flatten(),
        slot=torch.arange(capacity, device=scores.device).expand_as(order).flatten(),
        weight=gates.transpose(1, 2).gather(-1, order).flatten(),
        kept=torch.ones(order.numel(), dtype=torch.bool, device=scores.device),
        num_groups=num_groups,
        group_size=group_size,
        num_experts=num_experts,
        capacity=capacity,
    )


def chosen_by_experts(plan: DispatchPlan, scores: Tensor) -> Tensor:
    """Return the experts ``(G, S, E)`` that hold each token by ``plan``, best score first, -1 = no more."""
    holds = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    holds[(plan.token * plan.num_experts + plan.expert)[plan.kept]] = True
    ranked = scores.detach().masked_fill(~holds.view_as(scores), -torch.inf)
    ranked, expert = ranked.sort(dim=-1, descending=True, stable=True)
    return expert.masked_fill(ranked == -torch.inf, -1)


def plan_choices(
    gates: Tensor, selected: Tensor, processed: Tensor, *, capacity: int | None, renormalise: bool = False
) -> DispatchPlan:
    """Plan given choices, of which it is already known which find room.

    Args:
        gates: ``(G, S, E)`` weights of the combination.
        selected: ``(G, S, K)`` experts, best first, -1 = none.
        processed: ``(G, S, K)`` bool; the others come back with weight 0.
        capacity: C of the buffers; None without limit.
        renormalise: as in ``plan_token_choice``.

    Raises:
        UserError: more choices were processed than the buffers hold.
    """
    has_slot = processed & (selected >= 0)
    slot = None
    if capacity is not None:
        # What found no room waits at a desk of its own, in nobody's way.
        desk = gates.shape[-1]
        slot = _arrival(selected.where(has_slot, desk), desk + 1)
        if bool((slot[has_slot] >= capacity).any()):
            raise UserError(
                f"The routing was made with more room than the model has: its capacity is {capacity}."
            )
    return _plan(gates, selected, slot, has_slot, capacity, renormalise=renormalise)


def _plan(
    gates: Tensor,
    selected: Tensor,
    slot: Tensor | None,
    has_slot: Tensor,
    capacity: int | None,
    *,
    renormalise: bool,
) -> DispatchPlan:
    """Return the plan of assignments ``(G, S, K)``: those that are kept come back with their gate ``(G, S, E)``."""
    num_groups, group_size, num_experts = gates.shape
    # gather takes no -1; such entries have no slot and get weight 0.
    expert = selected.clamp_min(0)
    weight = gates.gather(-1, expert)
    if renormalise:
        total = weight.where(selected >= 0, 0.0).sum(-1, keepdim=True)
        # Experts that are forced on a token may have tiny gates, whose sum is still a sum.
        weight = weight / total.clamp_min(torch.finfo(weight.dtype).tiny)
    token = torch.arange(num_groups * group_size, device=gates.device).repeat_interleave(expert.shape[-1])
    return DispatchPlan(
        token=token,
        expert=expert.flatten(),
        slot=None if slot is None else slot.flatten(),
        weight=torch.where(has_slot, weight, 0.0).flatten(),
        kept=has_slot.flatten(),
        num_groups=num_groups,
        group_size=group_size,
        num_experts=num_experts,
        capacity=capacity,
        top_k=expert.shape[-1],
    )


def _arrival(selected: Tensor, num_experts: int, *, served_by: Tensor | None = None) -> Tensor:
    """Return for every choice ``(G, S, K)`` how many were served by its expert and group before it.

    Tokens are served in their order, or the highest ``served_by`` ``(G, S)`` first, ties in their order.
    """
    num_groups, group_size, top_k = selected.shape
    arriving = selected
    # Batch priority (BPR): confident tokens come first, so that capacity drops the others.
    if served_by is not None:
        order = served_by.argsort(dim=1, descending=True, stable=True)
        arriving = selected.gather(1, order[..., None].expand_as(selected))
    # Each group has queues of its own.
    groups = torch.arange(num_groups, device=selected.device)[:, None] * num_experts
    # First choices of all tokens stand before all second choices.
    queue = (arriving.transpose(1, 2).flatten(1) + groups).flatten()
    slot = rank_within(queue, torch.bincount(queue, minlength=num_groups * num_experts))
    slot = slot.view(num_groups, top_k, group_size).transpose(1, 2)
    if served_by is not None:
        slot = torch.empty_like(slot).scatter(1, order[..., None].expand_as(slot), slot)
    return slot


def rank_within(queue: Tensor, lengths: Tensor) -> Tensor:
    """Return for each entry of ``queue`` (N,) how many earlier entries name the same queue; ``lengths``: of each."""
    # Stable, so that earlier tokens get earlier slots.
    order = queue.argsort(stable=True)
    start = lengths.cumsum(0) - lengths
    rank = torch.arange(len(queue), device=queue.device) - start[queue[order]]
    return torch.empty_like(rank).scatter(0, order, rank)
