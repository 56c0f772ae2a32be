"""How much room experts have in training, and how good transport plans are: beside the losses in ``metrics.csv``.

Axes: G groups, S tokens per group, E experts, C places of an expert in a group.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from moeprobe.models.nn.plans import DispatchPlan
from moeprobe.models.nn.routers.base import Decision


@torch.no_grad()
def room(decisions: Mapping[str, Decision]) -> dict[str, Tensor]:
    """Return the statistics of the MoE layers of a step, each the mean over the layers that have it.

    ``dropped``: share of the choices that find no room, and ``buffer_fill``: share of the experts' places that are
    taken, where tokens choose and room is limited. ``plan_nonzeros``: entries of a sparse plan that are not zero, as a
    share of those allowed (C per expert where experts choose, k per token where tokens do); ``plan_error``: mean
    distance from 1 of the sums, in even shares, of the other side, which the plan's steps only approach.
    """
    metrics = {}
    for name, measure in _MEASURES.items():
        values = [value for decision in decisions.values() if (value := measure(decision)) is not None]
        if values:
            metrics[name] = torch.stack(values).mean()
    return metrics


def _limited_plan(decision: Decision) -> DispatchPlan | None:
    plan = decision.plan
    if isinstance(plan, DispatchPlan) and decision.top_k is not None and plan.capacity is not None:
        return plan
    return None


def _dropped_share(decision: Decision) -> Tensor | None:
    if _limited_plan(decision) is None:
        return None
    selected = decision.selected >= 0
    return (selected & ~decision.processed).sum() / selected.sum().clamp_min(1)


def _fill(decision: Decision) -> Tensor | None:
    plan = _limited_plan(decision)
    if plan is None or plan.capacity is None:
        return None
    return plan.kept.sum() / (plan.num_groups * plan.num_experts * plan.capacity)


def _nonzeros(decision: Decision) -> Tensor | None:
    if decision.transport is None:
        return None
    number = (decision.transport > 0).sum()
    num_groups, group_size, num_experts = decision.transport.shape
    if decision.top_k is not None:
        return number / (num_groups * group_size * decision.top_k)
    assert isinstance(decision.plan, DispatchPlan) and decision.plan.capacity is not None
    return number / (num_groups * num_experts * decision.plan.capacity)


def _error(decision: Decision) -> Tensor | None:
    if decision.transport is None:
        return None
    sums = decision.transport.sum(-1 if decision.top_k is None else 1)
    return (sums / sums.mean() - 1).abs().mean()


_MEASURES: dict[str, Callable[[Decision], Tensor | None]] = {
    "dropped": _dropped_share,
    "buffer_fill": _fill,
    "plan_nonzeros": _nonzeros,
    "plan_error": _error,
}
