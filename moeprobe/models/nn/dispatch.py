"""Send tokens to their experts as a plan says, and combine the outputs.

Axes: G groups, S tokens per group, D width, E experts, C capacity per group and expert, N assignments.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from moeprobe.models.nn.experts import StackedExperts
from moeprobe.models.nn.plans import DispatchPlan, FullPlan, SoftPlan, rank_within


class SharedExperts(Protocol):
    """All experts of a layer, of which this process has some (see ``training.parallel.layouts``)."""

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether rows are better sorted, as for ``StackedExperts``."""

    def __call__(self, rows: Tensor, loads: Tensor | None = None) -> Tensor:
        """Run the experts, as ``StackedExperts`` does."""


_Experts = StackedExperts | SharedExperts
# A padded batched product wastes the padding; past this ratio of the largest load to the mean load the grouped
# product is quicker (measured with 3,152 tokens of width 384 on two CPU cores).
_PADDING_LIMIT = 1.5


def run_experts(
    experts: _Experts,
    tokens: Tensor,
    plan: DispatchPlan | SoftPlan | FullPlan,
    *,
    bfloat16: bool = False,
) -> Tensor:
    """Send tokens ``(G·S, D)`` to their experts and combine the outputs; a fully dropped token gets 0.

    ``bfloat16`` is V-MoE's option: tokens and expert outputs are rounded to bfloat16 where they would travel
    between devices, the weighted sum stays in float32.
    """
    sent = _round_bfloat16(tokens) if bfloat16 else tokens
    if isinstance(plan, SoftPlan):
        return _run_soft(experts, sent, plan, bfloat16=bfloat16)
    if isinstance(plan, FullPlan):
        outputs = experts(sent.expand(plan.weight.shape[-1], -1, -1))
        outputs = _round_bfloat16(outputs) if bfloat16 else outputs
        weight = plan.weight.flatten(0, 1).to(tokens.dtype)
        return torch.einsum("te,etd->td", weight, outputs.to(tokens.dtype))
    if experts.prefer_sorted(tokens):
        return _run_sorted(experts, sent, plan, bfloat16=bfloat16).to(tokens.dtype)
    run = _run_without_limit if plan.capacity is None else _run_with_capacity
    outputs = run(experts, sent, plan)
    if bfloat16:
        outputs = _round_bfloat16(outputs)
    weighted = (outputs * plan.weight[:, None].to(tokens.dtype)).to(tokens.dtype)
    if plan.top_k is None:
        return torch.zeros_like(tokens).index_add(0, plan.token, weighted)
    first, *following = weighted.view(-1, plan.top_k, weighted.shape[-1]).unbind(1)
    return sum(following, start=first)


def _run_sorted(experts: _Experts, tokens: Tensor, plan: DispatchPlan, *, bfloat16: bool) -> Tensor:
    """Run the experts on the rows that are kept, sorted by expert, and add up what each token gets."""
    queue = plan.expert.where(plan.kept, plan.num_experts)
    order = queue.argsort(stable=True)
    loads = torch.bincount(queue, minlength=plan.num_experts + 1)[:-1]
    number = int(loads.sum())
    if plan.top_k is None or number == 0:
        order = order[:number]
        token = plan.token[order]
        outputs = experts(tokens.index_select(0, token), loads)
        outputs = _round_bfloat16(outputs) if bfloat16 else outputs
        weighted = outputs * plan.weight[order, None].to(tokens.dtype)
        return torch.zeros_like(tokens).index_add(0, token, weighted.to(tokens.dtype))
    row = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    row_order = _RowOrder(order[:number], row.clamp_max(number - 1), order[number:], plan.top_k)
    outputs = experts(row_order.send(tokens), loads)
    if bfloat16:
        outputs = _round_bfloat16(outputs)
    return row_order.combine(outputs.to(tokens.dtype), plan.weight.to(tokens.dtype))


@dataclass(frozen=True)
class _RowOrder:
    """Where rows lie among the experts and where they came from: gradients are read off, not added up row by row.

    Attributes:
        order: ``(P,)`` assignment of each row of the experts.
        row: ``(N,)`` row of each assignment; any where it is dropped.
        dropped: assignments without a row.
        top_k: assignments of a token, one after the other.
    """

    order: Tensor
    row: Tensor
    dropped: Tensor
    top_k: int

    def send(self, tokens: Tensor) -> Tensor:
        """Return the rows ``(P, D)`` of tokens ``(N / K, D)``."""
        rows: Tensor = _Send.apply(tokens, self)
        return rows

    def combine(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Return each token's sum ``(N / K, D)`` of its rows, times their weights ``(N,)``."""
        combined: Tensor = _Combine.apply(rows, weight, self)
        return combined

    def by_row(self, tokens: Tensor) -> Tensor:
        """Return the token ``(N / K, D)`` of each row, ``(P, D)``."""
        return tokens.index_select(0, self.order if self.top_k == 1 else self.order // self.top_k)

    def by_assignment(self, rows: Tensor) -> Tensor:
        """Return the row ``(P, D)`` of each assignment, ``(N, D)``; 0 where dropped."""
        return rows.index_select(0, self.row).index_fill_(0, self.dropped, 0)


class _Send(torch.autograd.Function):
    """``_RowOrder.send``."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, row_order: _RowOrder) -> Tensor:
        ctx.row_order = row_order
        return row_order.by_row(tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        gradient, top_k = ctx.row_order.by_assignment(upstream), ctx.row_order.top_k
        return gradient if top_k == 1 else gradient.view(-1, top_k, gradient.shape[-1]).sum(1), None


class _Combine(torch.autograd.Function):
    """``_RowOrder.combine``."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, row_order: _RowOrder) -> Tensor:
        ctx.row_order = row_order
        outputs = row_order.by_assignment(rows)
        ctx.save_for_backward(outputs, weight)
        # Choice by choice: a product with the weights would be counted among the model's FLOPs.
        first, *following = outputs.view(-1, row_order.top_k, outputs.shape[-1]).unbind(1)
        weights = weight.view(-1, row_order.top_k, 1).unbind(1)
        combined = first * weights[0]
        for choice, choice_weight in zip(following, weights[1:], strict=True):
            combined.addcmul_(choice, choice_weight)
        return combined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        outputs, weight = ctx.saved_tensors
        row_order = ctx.row_order
        d_rows = row_order.by_row(upstream).mul_(weight.index_select(0, row_order.order)[:, None])
        choices = outputs.view(-1, row_order.top_k, outputs.shape[-1])
        return d_rows, torch.bmm(choices, upstream[..., None]).flatten(), None


def _run_soft(experts: _Experts, tokens: Tensor, plan: SoftPlan, *, bfloat16: bool) -> Tensor:
    """Mix tokens into slots, run every expert on its slots of all groups, mix the outputs back."""
    num_groups, group_size, num_experts, num_slots = plan.dispatch.shape
    groups = tokens.view(num_groups, group_size, -1)
    dispatch, combine = (weights.to(tokens.dtype).flatten(2) for weights in (plan.dispatch, plan.combine))
    slots = (dispatch.transpose(1, 2) @ groups).view(num_groups, num_experts, num_slots, -1)
    outputs = experts(slots.transpose(0, 1).flatten(1, 2)).view(num_experts, num_groups, num_slots, -1)
    if bfloat16:
        outputs = _round_bfloat16(outputs)
    mixed = combine @ outputs.transpose(0, 1).flatten(1, 2).to(tokens.dtype)
    return mixed.flatten(0, 1)


def _round_bfloat16(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16).to(values.dtype)


def _run_with_capacity(experts: _Experts, tokens: Tensor, plan: DispatchPlan) -> Tensor:
    """Run the experts on buffers of G·C slots: sizes are known beforehand, so nothing waits for the device."""
    assert plan.capacity is not None
    assert plan.slot is not None
    group = plan.token // plan.group_size
    depth = plan.num_groups * plan.capacity
    # Dropped rows share one behind the buffers.
    waste = plan.num_experts * depth
    row = torch.where(plan.kept, plan.expert * depth + group * plan.capacity + plan.slot, waste)
    rows = _rows(tokens, plan)
    buffer = rows.new_zeros(waste + 1, rows.shape[-1]).index_copy(0, row, rows)
    outputs = experts(buffer[:waste].view(plan.num_experts, depth, -1)).flatten(0, 1)
    return torch.cat([outputs, outputs.new_zeros(1, outputs.shape[-1])])[row]


def _run_without_limit(experts: _Experts, tokens: Tensor, plan: DispatchPlan) -> Tensor:
    """Run the experts on whatever loads there are: padded where they are even, grouped where they are not."""
    loads = torch.bincount(plan.expert, minlength=plan.num_experts)
    depth, rows = int(loads.max()), _rows(tokens, plan)
    if depth * plan.num_experts <= _PADDING_LIMIT * len(rows):
        row = plan.expert * depth + rank_within(plan.expert, loads)
        buffer = rows.new_zeros(plan.num_experts * depth, rows.shape[-1]).index_copy(0, row, rows)
        return experts(buffer.view(plan.num_experts, depth, -1)).flatten(0, 1)[row]
    order = plan.expert.argsort(stable=True)
    outputs = experts(rows[order], loads)
    return torch.empty_like(outputs).index_copy(0, order, outputs)


def _rows(tokens: Tensor, plan: DispatchPlan) -> Tensor:
    """Return the token of each assignment ``(N, D)``."""
    if plan.top_k is None:
        return tokens[plan.token]
    return tokens if plan.top_k == 1 else tokens.repeat_interleave(plan.top_k, dim=0)
