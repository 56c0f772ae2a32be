"""The MoE layer against other ways to write it, and against three limits.

The dense MLP has as many FLOPs, and its two matrix products alone show what the machine can do. The experts alone do
their products on tokens that lie in order already: no router, and no moves but to repeat tokens and add their k
results; yet the parameters of all experts to be read, and their gradients to be written.

Tokens are made so that the router sends them where the race says: every expert as many, or the most loaded so many
times the mean. Small experts, of digits and of a width of 192, are measured beside those of S/32, since what surrounds
their products weighs more. All contestants share parameters and route by themselves; with a gradient, that of the input
and of all parameters is compared too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.plain_layers import (
    Rule,
    Weights,
    dense,
    experts_alone,
    grouped,
    hugging_face,
    loop,
    one_hot,
    padded,
    products,
)
from benchmarks.speed.race import BEST, Contestant, Race, Target
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice

OURS, DENSE, HUGGING_FACE = "moeprobe", "dense MLP", "Hugging Face, grouped_mm"
ALONE, PRODUCTS = "experts alone", "matrix products"
_LIMITS = (DENSE, PRODUCTS, ALONE)
_TRAINED = 1.05
_TOLERANCE = 1e-4
# One-hot tensors of more experts take longer than all the rest together.
_FEW_EXPERTS = 8
# So much better is a token's first choice than its second, and that than the others.
_GAP = 2.0


@dataclass(frozen=True)
class Sizes:
    """B images of T tokens, in groups of so many images, width D, hidden width M of an expert."""

    images: int
    tokens: int
    group_images: int
    width: int
    hidden: int


S_32 = "S/32"
LAYOUTS = {
    S_32: Sizes(images=16, tokens=197, group_images=8, width=384, hidden=1536),
    "D 192": Sizes(images=16, tokens=197, group_images=8, width=192, hidden=768),
    "digits": Sizes(images=128, tokens=17, group_images=128, width=64, hidden=128),
}


@dataclass(frozen=True)
class Case:
    """Experts, choices per token, how many times the mean the most loaded expert gets, and which layout."""

    num_experts: int
    top_k: int
    skew: float = 1.0
    layout: str = S_32

    @property
    def skewed(self) -> bool:
        """Whether one expert is chosen more often than the others."""
        return self.skew > 1

    @property
    def name(self) -> str:
        """As the table calls it."""
        layout = "" if self.layout == S_32 else f"{self.layout}, "
        return (
            f"{layout}E {self.num_experts} k {self.top_k}{f' skewed {self.skew:g} ×' if self.skewed else ''}"
        )


# Trained routers load their busiest expert 1.05 to 1.5 times the mean; at 2.9 times a router has begun to collapse.
CASES = (
    Case(8, 2), Case(8, 2, skew=1.3), Case(8, 2, skew=2.9), Case(8, 1), Case(32, 1), Case(64, 1),
    *(Case(8, k, skew, layout) for layout in ("D 192", "digits") for k in (1, 2) for skew in (1.0, 1.3)),
)  # fmt: skip
QUICK = Sizes(images=4, tokens=17, group_images=2, width=64, hidden=64)
# Large experts, as many tokens for each: little but the products is left to do.
_NEAR_PRODUCTS = (Case(8, 2), Case(8, 1))
# Both ends of how the cost grows with the number of experts.
_FEW, _MANY = Case(8, 1), Case(64, 1)


class Layer(Part):
    """The MoE layer, forward and forward with backward, with and without a limit of places."""

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield a race for every case, limit and direction; then the growth from 8 to 64 experts."""
        # At tiny sizes all layouts are alike.
        for case in (case for case in CASES if case.layout == S_32 or not settings.quick):
            sizes = QUICK if settings.quick else LAYOUTS[case.layout]
            for factor in (None, _TRAINED):
                for backward in (False, True):
                    yield _race(_Work(sizes, case, factor, settings.device), backward=backward)
        sizes = QUICK if settings.quick else LAYOUTS[S_32]
        for factor in (None, _TRAINED):
            for backward in (False, True):
                yield _growth(sizes, factor, settings.device, backward=backward)


class _Work:
    """A layer, its input, and the ways to run it."""

    def __init__(self, sizes: Sizes, case: Case, factor: float | None, device: str) -> None:
        torch.manual_seed(0)
        self.sizes, self.case, self.factor, self.device = sizes, case, factor, device
        self.layer = _layer(sizes, case, factor).to(device)
        group = sizes.group_images * sizes.tokens
        rule = self.layer.router.eval_capacity
        capacity = rule.capacity(group_size=group, num_experts=case.num_experts, top_k=case.top_k)
        self.rule = Rule(case.top_k, sizes.images // sizes.group_images, capacity)
        parameters = dict(self.layer.named_parameters())
        self.weights = Weights(
            parameters["router.gate.weight"],
            *(parameters[f"experts.{name}"] for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")),
        )
        self.tokens = tokens_for(self.weights.gate.detach().cpu(), sizes, case).to(device)
        self.dense = _dense_weights(self.weights, case.top_k)
        self.upstream = torch.randn_like(self.tokens)

    @property
    def name(self) -> str:
        limit = "no limit" if self.factor is None else f"capacity {self.factor:g}"
        return f"{self.case.name}, {limit}"

    def ways(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return contestant -> ``(N, D)`` to ``(N, D)``."""
        images = (self.sizes.images, self.sizes.tokens, self.sizes.width)
        others = {"loop + index_add": loop, "padded bmm": padded}
        if hasattr(torch.nn.functional, "grouped_mm"):
            others["grouped_mm"] = grouped
        if self.factor is None and find_spec("transformers") is not None:
            others[HUGGING_FACE] = hugging_face
        if self.case.num_experts <= _FEW_EXPERTS:
            others["one-hot einsum"] = one_hot
        ways: dict[str, Callable[[Tensor], Tensor]] = {
            OURS: lambda tokens: self.layer(tokens.view(images)).flatten(0, 1)
        }
        for name, other in others.items():
            ways[name] = lambda tokens, other=other: other(tokens, self.weights, self.rule)  # type: ignore[misc]
        limits = {DENSE: lambda tokens: dense(tokens, self.dense)}
        limits[PRODUCTS] = lambda tokens: products(tokens, self.dense)
        if not self.case.skewed:
            limits[ALONE] = lambda tokens: experts_alone(tokens, self.weights, self.case.top_k)
        return ways | limits

    def contestant(self, name: str, way: Callable[[Tensor], Tensor], *, backward: bool) -> Contestant:
        """Return a way as one who takes part."""
        own = self.dense if name in (DENSE, PRODUCTS) else self.weights
        leaves = {key: getattr(own, key) for key in ("w1", "b1", "w2", "b2")}
        if name not in _LIMITS:
            leaves["gate"] = own.gate
        tokens = self.tokens.clone().requires_grad_(backward)

        def forward() -> object:
            with torch.inference_mode():
                return way(tokens)

        def both() -> object:
            output = way(tokens)
            output.backward(self.upstream)
            return {
                "output": output.detach(),
                "input": tokens.grad,
                **{key: leaf.grad for key, leaf in leaves.items()},
            }

        def clear() -> None:
            for leaf in (tokens, *leaves.values()):
                leaf.grad = None

        role: Any = "ours" if name == OURS else "limit" if name in _LIMITS else "other"
        return Contestant(name, both if backward else forward, role=role, before=clear if backward else None)


def tokens_for(gate: Tensor, sizes: Sizes, case: Case) -> Tensor:
    """Return tokens ``(N, D)`` that a gate ``(E, D)`` of orthonormal rows sends where the case says."""
    num_experts, num_tokens = case.num_experts, sizes.images * sizes.tokens
    group = sizes.group_images * sizes.tokens
    place = torch.arange(num_tokens)
    first, second = place % num_experts, (place + 1) % num_experts
    if case.skewed:
        hot = place % group < round(case.skew * case.top_k / num_experts * group)
        cold = 1 + place % (num_experts - 1)
        first = torch.where(hot, 0, cold)
        second = torch.where(hot, cold, 1 + (place + 1) % (num_experts - 1))
    # In any order within a group, and the same number for everyone in each.
    order = torch.cat([start + torch.randperm(group) for start in range(0, num_tokens, group)])
    logits = 0.1 * torch.randn(num_tokens, num_experts)
    logits = logits.scatter(1, second[order, None], _GAP).scatter(1, first[order, None], 2 * _GAP)
    tokens = torch.randn(num_tokens, sizes.width)
    return tokens - tokens @ gate.T @ gate + logits @ gate


def _layer(sizes: Sizes, case: Case, factor: float | None) -> MoeLayer:
    router = SoftmaxTokenChoice(
        sizes.width, case.num_experts, case.top_k, eval_capacity=CapacityRule(factor) if factor else None
    )
    with torch.no_grad():
        torch.nn.init.orthogonal_(router.gate.weight)
    experts = MlpExperts(case.num_experts, sizes.width, sizes.hidden)
    return MoeLayer(router, experts, group_images=sizes.group_images).eval()


def _dense_weights(weights: Weights, top_k: int) -> Weights:
    """Return an MLP with the hidden units of the first ``top_k`` experts."""
    w1 = torch.cat(list(weights.w1[:top_k]), dim=1)
    b1, w2 = weights.b1[:top_k].flatten(), weights.w2[:top_k].flatten(0, 1)
    leaves = (w1, b1, w2, weights.b2[0])
    return Weights(weights.gate, *(leaf.detach().clone()[None].requires_grad_() for leaf in leaves))


def _race(work: _Work, *, backward: bool) -> Race:
    targets = [Target(OURS, BEST, at_least=0.95)]
    if not work.case.skewed:
        targets += [Target(OURS, DENSE, at_least=0.8), Target(OURS, ALONE, at_least=0.9)]
    if work.case in _NEAR_PRODUCTS and not backward:
        targets.append(Target(OURS, PRODUCTS, at_least=0.85))
    return Race(
        f"{work.name}, {_direction(backward)}",
        [work.contestant(name, way, backward=backward) for name, way in work.ways().items()],
        tolerance=_TOLERANCE,
        targets=targets,
    )


def _growth(sizes: Sizes, factor: float | None, device: str, *, backward: bool) -> Race:
    """Return our layer with many experts against our layer with few: as many FLOPs, so as much time."""
    contestants = []
    for case in (_FEW, _MANY):
        work = _Work(sizes, case, factor, device)
        made = work.contestant(OURS, work.ways()[OURS], backward=backward)
        contestants.append(Contestant(case.name, made.work, "ours", made.before))
    limit = work.name.partition(", ")[2]
    return Race(
        f"from E {_FEW.num_experts} to E {_MANY.num_experts}, {limit}, {_direction(backward)}",
        contestants,
        tolerance=None,
        targets=[Target(_MANY.name, _FEW.name, at_most=1.3)],
    )


def _direction(backward: bool) -> str:
    return "forward + backward" if backward else "forward"
