"""Routings and models made up for tests."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.inputs.data.digits import Digits
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.inputs.modality import WORDS
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.routing.record import LayerPair, LayerRouting, RoutingTrace, order_choices


def routing(
    num_images: int = 3,
    *,
    grid: tuple[int, int] = (2, 3),
    num_experts: int = 5,
    top_k: int = 2,
    prefix: int = 1,
    seed: int = 0,
    valid: Tensor | None = None,
    absent: float = 0.0,
    **changes: Any,
) -> LayerRouting:
    """A random softmax routing; a share ``absent`` of the last choices is missing."""
    random = torch.Generator().manual_seed(seed)
    num_tokens = prefix + grid[0] * grid[1]
    gates = torch.randn(num_images, num_tokens, num_experts, generator=random).softmax(-1)
    selected = gates.topk(top_k).indices.to(torch.int16)
    missing = torch.rand(num_images, num_tokens, generator=random) < absent
    selected[..., -1] = selected[..., -1].masked_fill(missing, -1)
    fields: dict[str, Any] = {
        "gates": gates,
        "scores": None,
        "selected": selected,
        "processed": selected >= 0,
        "valid": torch.ones(num_images, num_tokens, dtype=torch.bool) if valid is None else valid,
        "grid": PatchGrid(*grid, 8),
        "num_prefix_tokens": prefix,
        "gates_sum_to_one": True,
        "token_local": True,
        "router": "softmax_token_choice",
    }
    return LayerRouting(**(fields | changes))


def expert_choice(num_images: int = 3, *, capacity: int = 3, **changes: Any) -> LayerRouting:
    """A random routing in which each expert takes its best tokens of each image; some tokens nobody takes."""
    layer = routing(num_images, **changes)
    gates = layer.gates
    taken = torch.zeros_like(gates).scatter(1, gates.topk(capacity, dim=1).indices, 1.0).bool()
    experts = torch.arange(layer.num_experts).expand_as(gates)
    absent = torch.full_like(experts, -1)
    selected, processed = order_choices(experts.where(taken, absent), taken, gates)
    chosen: dict[str, Any] = {
        "selected": selected,
        "processed": processed,
        "experts_choose": True,
        "token_local": False,
    }
    return dataclasses.replace(layer, router="softmax_expert_choice", **chosen)


def soft(num_images: int = 3, *, slots: int = 2, **changes: Any) -> LayerRouting:
    """A random routing in which each token gets a share of every slot."""
    layer = routing(num_images, **changes)
    random = torch.Generator().manual_seed(changes.get("seed", 0))
    shape = (*layer.gates.shape[:2], layer.num_experts * slots)
    combine = torch.randn(shape, generator=random).mul(2).softmax(-1)
    return dataclasses.replace(
        layer,
        gates=combine.unflatten(-1, (-1, slots)).sum(-1),
        selected=layer.selected[..., :0],
        processed=layer.processed[..., :0],
        slot=combine.argmax(-1),
        token_local=False,
        router="soft_moe",
    )


class Softened(Vmoe):
    """A model whose routers are said to be soft: every expert a share of every token, one slot each."""

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, found = super().trace(images, layers=layers, logits=logits)
        return scores, RoutingTrace(
            {
                name: dataclasses.replace(
                    layer,
                    selected=layer.selected[..., :0],
                    processed=layer.processed[..., :0],
                    slot=layer.gates.argmax(-1),
                    router="soft_moe",
                )
                for name, layer in found.layers.items()
            }
        )


class Worded(Vmoe):
    """A model whose prefix tokens are said to be words beside a picture."""

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, found = super().trace(images, layers=layers, logits=logits)
        return scores, RoutingTrace(
            {
                name: dataclasses.replace(layer, leading=((WORDS, layer.num_prefix_tokens),))
                for name, layer in found.layers.items()
            }
        )


def aligned(reference: LayerRouting, view: LayerRouting) -> LayerPair:
    assert view.grid is not None
    patches = torch.arange(view.grid.num_patches).expand(len(view.gates), -1)
    return LayerPair(reference, view, patches, patches, aligned=True)


def images_of(layer: LayerRouting, rows: slice) -> LayerRouting:
    """The routing of some images of a batch."""
    per_image = ["gates", "selected", "processed", "valid"]
    per_image += [name for name in ("slot", "places") if getattr(layer, name) is not None]
    return dataclasses.replace(layer, **{name: getattr(layer, name)[rows] for name in per_image})


def tiny(seed: int = 0, **arguments: Any) -> torch.nn.Module:
    """A small V-MoE with random parameters, whose gates are not close to uniform and whose scores are not all equal."""
    import moeprobe.models.nn.vit  # noqa: F401  (registers the models)
    from moeprobe.models.timm import timm

    torch.manual_seed(seed)
    model = timm.create_model("vmoe_tiny_patch8_32", **arguments)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(4)
            if name == "head.weight":  # starts at zero
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def checkpoint(name: str = "a", *, seed: int = 0, adapter: type[Vmoe] = Vmoe, **arguments: Any) -> Checkpoint:
    """A checkpoint of a tiny model; arguments are the adapter's and the model's."""
    own = {key: arguments.pop(key) for key in ("trained_capacity", "group_images") if key in arguments}
    model = adapter(tiny(seed, **arguments), mean=(0.5,) * 3, std=(0.5,) * 3, **own)
    about = {"sha256": f"hash of {name}", "training": {"data": "digits"}}
    return Checkpoint(name=name, model=model, framing=Framing(32), provenance=about)


def with_numpy_weights(model: Checkpoint) -> Checkpoint:
    """The same checkpoint with weights that any release of torch has; its own random numbers change with it."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for name, parameter in cast(Vmoe, model.model).model.named_parameters():
            if parameter.ndim > 1:
                scale = (4 if "router" in name else 1) / max(parameter.shape[1:]) ** 0.5
                parameter.copy_(torch.from_numpy(scale * rng.standard_normal(parameter.shape)))
    return model


@cache
def digits() -> Digits:
    return Digits(split="test")


def probe(view_name: str, view: Any, *, severities: tuple[float, ...] = (), **changes: Any) -> RunSpec:
    """What is asked of a tiny model on some digits."""
    from moeprobe.runtime.catalog import ANALYSES

    fields: dict[str, Any] = {
        "dataset": digits(),
        "indices": list(range(30)),
        "analyses": tuple(ANALYSES.get(name)() for name in ("match", "confidence", "load", "output")),
        "seed": 0,
    }
    return RunSpec(view_name=view_name, view=view, severities=severities, **(fields | changes))
