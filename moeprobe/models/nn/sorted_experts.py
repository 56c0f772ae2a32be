"""The experts' perceptrons on rows sorted by expert, one expert after the other: for a CPU.

Nothing is padded, an expert's hidden units stay in the cache, and gradients of the parameters are written where they
belong: a sum over experts, or a stack of theirs, would move all of them once more.

Axes: E experts, N rows, D width, M hidden width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Activation = Callable[[Tensor], Tensor]


def sorted_affine(rows: Tensor, weight: Tensor, bias: Tensor, loads: Sequence[int]) -> Tensor:
    """Return ``(N, D_out)``: ``rows[i] @ weight[e] + bias[e]`` with e the expert of row i.

    Args:
        rows: ``(N, D_in)`` sorted by expert.
        weight: ``(E, D_in, D_out)``.
        bias: ``(E, D_out)``.
        loads: rows of each expert.
    """
    output: Tensor = _SortedAffine.apply(rows, weight, bias, loads)
    return output


class _SortedAffine(torch.autograd.Function):
    """One product for each expert, whose gradients are written where they belong."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, loads: Sequence[int]) -> Tensor:
        output = rows.new_empty(len(rows), weight.shape[2])
        parts = zip(rows.split(loads), output.split(loads), weight, bias, strict=True)
        for expert_rows, out, expert_weight, expert_bias in parts:
            torch.addmm(expert_bias, expert_rows, expert_weight, out=out)
        ctx.loads = loads
        ctx.save_for_backward(rows, weight)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        d_rows, d_weight = (
            torch.empty_like(each) if needed else None
            for each, needed in zip((rows, weight), ctx.needs_input_grad, strict=False)
        )
        d_bias = weight.new_empty(len(weight), weight.shape[2])
        parts = zip(rows.split(ctx.loads), upstream.split(ctx.loads), strict=True)
        expert_d_rows = [None] * len(weight) if d_rows is None else d_rows.split(ctx.loads)
        for number, (expert_rows, expert_upstream) in enumerate(parts):
            torch.sum(expert_upstream, 0, out=d_bias[number])
            if d_weight is not None:
                torch.mm(expert_rows.T, expert_upstream, out=d_weight[number])
            if (out := expert_d_rows[number]) is not None:
                torch.mm(expert_upstream, weight[number].T, out=out)
        return d_rows, d_weight, d_bias if ctx.needs_input_grad[2] else None, None


def sorted_mlp(
    rows: Tensor,
    parameters: tuple[Tensor, Tensor, Tensor, Tensor],
    activation: Activation,
    loads: Sequence[int],
) -> Tensor:
    """Return ``(N, D)`` of rows ``(N, D)`` sorted by expert.

    Args:
        rows: what goes in.
        parameters: weight ``(E, D, M)`` and bias ``(E, M)`` of the first layer, ``(E, M, D)`` and ``(E, D)`` of the
            second.
        activation: between the layers, without parameters of its own; elementwise.
        loads: rows of each expert.
    """
    output: Tensor = _SortedMlp.apply(rows, *parameters, activation, loads)
    return output


class _SortedMlp(torch.autograd.Function):
    """Keeps hidden units before the activation, which is computed once more in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: Activation,
        loads: Sequence[int],
    ) -> Tensor:  # fmt: skip
        output = torch.empty_like(rows)
        keep, hidden = any(ctx.needs_input_grad), []
        parts = zip(rows.split(loads), output.split(loads), strict=True)
        for number, (expert_rows, out) in enumerate(parts):
            if not len(expert_rows):
                continue
            before = torch.addmm(b1[number], expert_rows, w1[number])
            torch.addmm(b2[number], activation(before), w2[number], out=out)
            if keep:
                hidden.append(before)
        ctx.activation, ctx.loads = activation, loads
        ctx.save_for_backward(rows, w1, w2, *hidden)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, w1, w2, *hidden = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad
        upstream = upstream.contiguous()
        d_rows = torch.empty_like(rows) if needs_grad[0] else None
        d_w1, d_w2 = (torch.empty_like(w) if needs_grad[index] else None for index, w in ((1, w1), (3, w2)))
        d_b1, d_b2 = w1.new_zeros(len(w1), w1.shape[2]), w2.new_zeros(len(w2), w2.shape[2])
        hidden_units = iter(hidden)
        start = 0
        for number, load in enumerate(ctx.loads):
            expert_rows = slice(start, start + load)
            start += load
            if not load:
                for gradient in (d_w1, d_w2):
                    if gradient is not None:
                        gradient[number].zero_()
                continue
            with torch.enable_grad():
                before = next(hidden_units).detach().requires_grad_()
                after = ctx.activation(before)
            torch.sum(upstream[expert_rows], 0, out=d_b2[number])
            if d_w2 is not None:
                torch.mm(after.detach().T, upstream[expert_rows], out=d_w2[number])
            (d_before,) = torch.autograd.grad(after, before, upstream[expert_rows] @ w2[number].T)
            torch.sum(d_before, 0, out=d_b1[number])
            if d_w1 is not None:
                torch.mm(rows[expert_rows].T, d_before, out=d_w1[number])
            if d_rows is not None:
                torch.mm(d_before, w1[number].T, out=d_rows[expert_rows])
        return (
            d_rows,
            d_w1,
            d_b1 if needs_grad[2] else None,
            d_w2,
            d_b2 if needs_grad[4] else None,
            None,
            None,
        )
