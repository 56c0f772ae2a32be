"""The MoE layer as others write it, in a few lines each: what ours is measured against.

All take the same choices (top-k of a softmax, first choices served before second ones where room is limited) and run
the same experts. Three limits route nothing: the dense MLP has as many FLOPs as the chosen experts, its products leave
out the rest of it, and the experts alone take tokens that lie in order.

Axes: N tokens, K choices per token, E experts, C places of an expert (of all groups together), G groups, D width, M
hidden width.
"""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Of a layer: gate ``(E, D)``, w1 ``(E, D, M)``, b1 ``(E, M)``, w2 ``(E, M, D)``, b2 ``(E, D)``."""

    gate: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


@dataclass(frozen=True)
class Rule:
    """Choices per token, groups of tokens that share places, and places of an expert in each; None without limit."""

    top_k: int
    num_groups: int
    capacity: int | None


@dataclass(frozen=True)
class _Routing:
    """expert and weight ``(N, K)``; slot ``(N, K)`` among those of its expert and group; kept ``(N, K)`` or None."""

    expert: Tensor
    weight: Tensor
    slot: Tensor | None
    kept: Tensor | None


def loop(tokens: Tensor, weights: Weights, rule: Rule) -> Tensor:
    """Return ``(N, D)``: expert after expert on the tokens that chose it, added where they belong."""
    routing = _route(tokens, weights.gate, rule, slots=rule.capacity is not None)
    output = torch.zeros_like(tokens)
    experts = zip(*(each.unbind(0) for each in (weights.w1, weights.b1, weights.w2, weights.b2)), strict=True)
    for number, (w1, b1, w2, b2) in enumerate(experts):
        chosen = routing.expert == number
        token, choice = (chosen if routing.kept is None else chosen & routing.kept).nonzero(as_tuple=True)
        hidden = F.gelu(torch.addmm(b1, tokens[token], w1), approximate="tanh")
        result = torch.addmm(b2, hidden, w2) * routing.weight[token, choice, None]
        output = output.index_add(0, token, result)
    return output


def grouped(tokens: Tensor, weights: Weights, rule: Rule) -> Tensor:
    """Return ``(N, D)``: tokens sorted by expert, torch's grouped product."""
    routing = _route(tokens, weights.gate, rule, slots=rule.capacity is not None)
    expert = routing.expert.flatten()
    order = expert.argsort(stable=True)
    if routing.kept is not None:
        order = order[routing.kept.flatten()[order]]
    expert = expert[order]
    token = order // rule.top_k
    ends = torch.bincount(expert, minlength=len(weights.gate)).cumsum(0).to(torch.int32)
    hidden = F.grouped_mm(tokens[token], weights.w1, offs=ends) + weights.b1[expert]
    result = F.grouped_mm(F.gelu(hidden, approximate="tanh"), weights.w2, offs=ends) + weights.b2[expert]
    result = result * routing.weight.flatten()[order, None]
    return torch.zeros_like(tokens).index_add(0, token, result)


def hugging_face(tokens: Tensor, weights: Weights, rule: Rule) -> Tensor:
    """Return ``(N, D)`` of the experts of Hugging Face's transformers, ``grouped_mm``, which know no capacity.

    Its ``eager`` is a loop that every model writes for itself, as ``loop``; its ``batched_mm`` copies the weights of an
    expert for each choice, 15 GB for the layer that is measured.
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    if rule.capacity is not None:
        raise ValueError("The experts of transformers know no capacity.")
    routing = _route(tokens, weights.gate, rule, slots=False)
    experts = SimpleNamespace(
        num_experts=len(weights.gate), up_proj=weights.w1, up_proj_bias=weights.b1, down_proj=weights.w2,
        down_proj_bias=weights.b2, act_fn=partial(F.gelu, approximate="tanh"), is_transposed=True, has_gate=False,
        has_bias=True, has_post_expert_norm=False, _is_expert_parallel=False,
    )  # fmt: skip
    output: Tensor = grouped_mm_experts_forward(experts, tokens, routing.expert, routing.weight)
    return output


def padded(tokens: Tensor, weights: Weights, rule: Rule) -> Tensor:
    """Return ``(N, D)``: a buffer with as many places for every expert, one batched product."""
    num_experts = len(weights.gate)
    routing = _route(tokens, weights.gate, rule, slots=True)
    assert routing.slot is not None
    slot, depth = routing.slot, rule.capacity
    if depth is None:
        depth = int(slot.max()) + 1
    else:
        group = torch.arange(len(tokens), device=tokens.device) // (len(tokens) // rule.num_groups)
        slot, depth = slot + group[:, None] * depth, depth * rule.num_groups
    place = routing.expert * depth + slot
    if routing.kept is not None:
        place = place.where(routing.kept, num_experts * depth)
    place = place.flatten()
    buffer = tokens.new_zeros(num_experts * depth + 1, tokens.shape[1])
    buffer = buffer.index_copy(0, place, tokens.repeat_interleave(rule.top_k, 0))[:-1]
    hidden = torch.baddbmm(weights.b1[:, None], buffer.view(num_experts, depth, -1), weights.w1)
    result = torch.baddbmm(weights.b2[:, None], F.gelu(hidden, approximate="tanh"), weights.w2).flatten(0, 1)
    result = F.pad(result, (0, 0, 0, 1))[place].view(len(tokens), rule.top_k, -1)
    return (result * routing.weight[..., None]).sum(1)


def one_hot(tokens: Tensor, weights: Weights, rule: Rule) -> Tensor:
    """Return ``(N, D)``: dispatch and combination as products with one-hot tensors, as the papers write it."""
    num_experts = len(weights.gate)
    routing = _route(tokens, weights.gate, rule, slots=True)
    assert routing.slot is not None
    num_groups, depth = (1, int(routing.slot.max()) + 1)
    if rule.capacity is not None:
        num_groups, depth = rule.num_groups, rule.capacity
    places = F.one_hot(routing.slot.clamp_max(depth), depth + 1)[..., :depth].to(tokens.dtype)
    experts = F.one_hot(routing.expert, num_experts).to(tokens.dtype)
    shape = (num_groups, -1, rule.top_k)
    experts, places = (each.view(*shape, each.shape[-1]) for each in (experts, places))
    dispatch = torch.einsum("gske,gskc->gsec", experts, places)
    combine = torch.einsum("gske,gskc->gsec", experts * routing.weight.view(*shape, 1), places)
    groups = tokens.view(num_groups, -1, tokens.shape[1])
    rows = torch.einsum("gsec,gsd->egcd", dispatch, groups).flatten(1, 2)
    hidden = F.gelu(torch.baddbmm(weights.b1[:, None], rows, weights.w1), approximate="tanh")
    result = torch.baddbmm(weights.b2[:, None], hidden, weights.w2).view(num_experts, num_groups, depth, -1)
    return torch.einsum("gsec,egcd->gsd", combine, result).flatten(0, 1)


def dense(tokens: Tensor, weights: Weights) -> Tensor:
    """Return ``(N, D)`` of the first expert of ``weights`` on all tokens."""
    hidden = F.gelu(torch.addmm(weights.b1[0], tokens, weights.w1[0]), approximate="tanh")
    return torch.addmm(weights.b2[0], hidden, weights.w2[0])


def products(tokens: Tensor, weights: Weights) -> Tensor:
    """Return ``(N, D)`` of the two matrix products of ``dense`` without biases and GELU: the machine at its best."""
    return (tokens @ weights.w1[0]) @ weights.w2[0]


def experts_alone(tokens: Tensor, weights: Weights, top_k: int) -> Tensor:
    """Return ``(N, D)``: every expert on the next ``top_k * N / E`` tokens, as if they had been sorted and shared out.

    Each token goes in ``top_k`` times; the results are added.
    """
    num_experts = len(weights.gate)
    rows = tokens.repeat(top_k, 1) if top_k > 1 else tokens
    if spare := -len(rows) % num_experts:
        rows = F.pad(rows, (0, 0, 0, spare))
    rows = rows.view(num_experts, -1, tokens.shape[1])
    hidden = F.gelu(torch.baddbmm(weights.b1[:, None], rows, weights.w1), approximate="tanh")
    result = torch.baddbmm(weights.b2[:, None], hidden, weights.w2).flatten(0, 1)
    return (
        result[: len(tokens) * top_k].view(top_k, *tokens.shape).sum(0)
        if top_k > 1
        else result[: len(tokens)]
    )


def _route(tokens: Tensor, gate: Tensor, rule: Rule, *, slots: bool) -> _Routing:
    gates = F.linear(tokens, gate).softmax(-1)
    weight, expert = gates.topk(rule.top_k, dim=-1)
    if not slots:
        return _Routing(expert, weight, None, None)
    num_groups = rule.num_groups if rule.capacity is not None else 1
    # (G, K·S): all first choices of a group, then all second ones.
    queue = expert.view(num_groups, -1, rule.top_k).transpose(1, 2).flatten(1)
    arrived = F.one_hot(queue, gate.shape[0]).cumsum(1)
    slot = arrived.gather(-1, queue[..., None]).view(num_groups, rule.top_k, -1).transpose(1, 2) - 1
    slot = slot.reshape(expert.shape)
    if rule.capacity is None:
        return _Routing(expert, weight, slot, None)
    kept = slot < rule.capacity
    return _Routing(expert, weight.where(kept, 0.0), slot, kept)
