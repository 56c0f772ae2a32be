"""Plans in the form in which the papers write them: ``(G, S, E, C)``, a cell for each token and slot."""

import math

import torch
from torch import Tensor

from moeprobe.models.nn.plans import DispatchPlan, FullPlan, SoftPlan


def dense(plan: DispatchPlan | SoftPlan | FullPlan) -> tuple[Tensor, Tensor]:
    """Return dispatch and combine weights; where every expert runs on every token, token s is in slot s."""
    if isinstance(plan, SoftPlan):
        return plan.dispatch, plan.combine
    if isinstance(plan, FullPlan):
        identity = torch.eye(plan.weight.shape[1], dtype=torch.bool, device=plan.weight.device)
        dispatch = identity[None, :, None, :].expand(-1, -1, plan.weight.shape[2], -1)
        return dispatch.expand(len(plan.weight), -1, -1, -1), plan.weight[..., None] * dispatch
    slot = _arrival(plan) if plan.slot is None else plan.slot
    capacity = plan.capacity if plan.capacity is not None else int(slot.max()) + 1
    shape = (plan.num_groups, plan.group_size, plan.num_experts, capacity)
    index = ((plan.token * plan.num_experts + plan.expert) * capacity + slot)[plan.kept]
    dispatch = torch.zeros(math.prod(shape), dtype=torch.bool, device=index.device)
    dispatch[index] = True
    combine = torch.zeros(math.prod(shape), dtype=plan.weight.dtype, device=index.device)
    return dispatch.view(shape), combine.index_put((index,), plan.weight[plan.kept]).view(shape)


def _arrival(plan: DispatchPlan) -> Tensor:
    """Return how many of an expert's choices came before each: all first choices of a group come before the second."""
    arriving = plan.expert.view(plan.num_groups, plan.group_size, -1).transpose(1, 2)
    queue = arriving.flatten(1)
    before = torch.nn.functional.one_hot(queue, plan.num_experts).cumsum(1) - 1
    slot = before.gather(-1, queue[..., None]).view(arriving.shape)
    return slot.transpose(1, 2).flatten()
