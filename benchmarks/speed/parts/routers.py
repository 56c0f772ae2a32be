"""What a router costs: a training step of one MoE layer with every router of the catalog but the dense gate.

A step is forward and backward of the layer, to its parameters and its input; the second race is of the routers alone.
All experts get as many places, so they cost as much everywhere: capacity factor 1.05 where tokens choose k experts,
1.05 · k where experts choose. Tokens are standard normal, grouped as each router groups images by default.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, DisagreementError, Race
from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import DispatchPlan, SoftPlan
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.sparse import make_router
from moeprobe.runtime.catalog import ROUTERS
from moeprobe.runtime.schema import Plugin

REFERENCE = "softmax_token_choice"
_FACTOR = 1.05
# An expert's places are a whole number, in every group.
_SLACK = 1.35
# With it every expert runs on every token, which is more work than any budget here.
_WITHOUT_BUDGET = "dense"


@dataclass(frozen=True)
class Sizes:
    """Of the layer and its batch: B images of T tokens, width D, hidden width M, E experts, k choices."""

    images: int
    tokens: int
    width: int
    hidden: int
    experts: int
    top_k: int


FULL = Sizes(images=16, tokens=197, width=384, hidden=1536, experts=32, top_k=2)
QUICK = Sizes(images=8, tokens=5, width=8, hidden=16, experts=4, top_k=2)


class Routers(Part):
    """A training step of one MoE layer with every router, and the routers alone, against softmax token choice."""

    rounds = 9

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the race of whole steps and that of the routers alone."""
        sizes = QUICK if settings.quick else FULL
        torch.manual_seed(0)
        names = [name for name in ROUTERS.names() if name != _WITHOUT_BUDGET]
        layers = {name: layer(name, sizes).to(settings.device) for name in names}
        tokens = torch.randn(sizes.images, sizes.tokens, sizes.width, device=settings.device)
        _check_places(layers, tokens)
        for name, work in (("training step", _step), ("router alone", _route)):
            contestants = [_contestant(router, made, tokens, work) for router, made in layers.items()]
            yield Race(name, contestants, tolerance=None, against=REFERENCE, ratio="time")


def layer(name: str, sizes: Sizes) -> MoeLayer:
    """Return a layer in training mode with the router called ``name``."""
    chooses = "top_k" in inspect.signature(ROUTERS.get(name)).parameters
    config = MoeConfig(
        num_experts=sizes.experts,
        router=Plugin(name=name),
        top_k=sizes.top_k if chooses else None,
        capacity_factor=_FACTOR if chooses else _FACTOR * sizes.top_k,
        capacity_multiple_of=1,
    )
    router = make_router(config, sizes.width, num_tokens=sizes.tokens)
    experts = MlpExperts(sizes.experts, sizes.width, sizes.hidden)
    return MoeLayer(router, experts, group_images=router.default_group_images).train()


def places(decision: Decision) -> int:
    """Return the rows that all experts together run on."""
    plan = decision.plan
    if isinstance(plan, SoftPlan):
        return plan.dispatch[:, 0].numel()
    assert isinstance(plan, DispatchPlan)
    assert plan.capacity is not None
    return plan.num_groups * plan.num_experts * plan.capacity


def _check_places(layers: dict[str, MoeLayer], tokens: Tensor) -> None:
    """Raise ``DisagreementError`` where experts get more work from one router than from another."""
    rows = {name: places(made.route(tokens)) for name, made in layers.items()}
    if max(rows.values()) > _SLACK * min(rows.values()):
        raise DisagreementError(f"Routers give the experts different numbers of rows: {rows}.")


def _contestant(
    name: str, made: MoeLayer, tokens: Tensor, work: Callable[[MoeLayer, Tensor], None]
) -> Contestant:
    own = tokens.clone().requires_grad_()

    def clear() -> None:
        made.zero_grad(set_to_none=True)
        own.grad = None

    return Contestant(name, lambda: work(made, own), "ours", clear)


def _step(made: MoeLayer, tokens: Tensor) -> None:
    made(tokens).square().sum().backward()


def _route(made: MoeLayer, tokens: Tensor) -> None:
    plan = made.route(tokens).plan
    weights = [plan.dispatch, plan.combine] if isinstance(plan, SoftPlan) else [plan.weight]
    total = torch.stack([weight.square().sum() for weight in weights]).sum()
    if total.requires_grad:
        total.backward()
