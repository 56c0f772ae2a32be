"""What a checkpoint is, without running it on data.

Of a V-MoE all of it follows from the header of the file; of others the model is built. Functions import torch and timm,
since a header needs no timm.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints.header import CheckpointInfo, Header, read_info
from moeprobe.routing.capabilities import Described
from moeprobe.runtime.catalog import is_foreign

if TYPE_CHECKING:
    from moeprobe.models.nn.moe import MoeLayer


@dataclass(frozen=True)
class LayerFacts:
    """A MoE layer, the tokens of an image that it sees, and the shapes of its experts' parameters, all together."""

    layer: "MoeLayer"
    tokens: int
    experts: list[tuple[int, ...]]

    @property
    def expert_parameters(self) -> int:
        """How many parameters all experts have."""
        return sum(map(math.prod, self.experts))

    @property
    def idle_parameters(self) -> int:
        """How many of them one token does not meet."""
        router = self.layer.router
        met = (
            router.num_experts
            if router.mixes_tokens
            else min(router.experts_per_token(self.tokens), router.num_experts)
        )
        return round(self.expert_parameters * (router.num_experts - met) / router.num_experts)

    @property
    def expert_flops(self) -> int:
        """What the experts are charged for an image: for what they are sent, since what runs depends on padding."""
        sent = round(self.tokens * self.layer.router.experts_per_token(self.tokens))
        return sent * sum(2 * math.prod(shape[1:]) for shape in self.experts if len(shape) == 3)

    def row(self, name: str, router_name: str) -> dict[str, Any]:
        """Return the row to print."""
        router = self.layer.router
        return {
            "layer": name,
            "router": router_name,
            "num_experts": router.num_experts,
            "top_k": router.top_k,
            "noise_std": router.noise_std,
            "capacity_factor": router.capacity.factor,
            "eval_capacity_factor": router.eval_capacity.factor,
            "group_images": self.layer.group_images,
            "expert_parameters": self.expert_parameters,
            "expert_flops_per_image": self.expert_flops,
        }


@dataclass(frozen=True)
class Facts:
    """A model's sizes, its MoE layers by name, how many parameters it has, and its operations for one image."""

    image_size: list[int]
    patch_size: list[int]
    tokens: int
    width: int
    blocks: int | list[int]
    classes: int
    parameters: int
    flops: int
    layers: dict[str, LayerFacts]


def inspect_checkpoint(source: str | Path, *, check: bool = False) -> dict[str, Any]:
    """Describe a checkpoint: architecture, parameters, active parameters, FLOPs, layers, normalization, provenance.

    Active parameters are those that one token meets: of each MoE layer's experts, ``top_k`` are counted, or as many as
    take a token on average where the experts choose, or all where every slot holds a share of every token. FLOPs are
    counted for one image in a group of its own, with unlimited capacity where possible; a multiply-add is counted as
    two. For a foreign model (``py:…``), what its adapter knows is shown instead.

    Args:
        source: the checkpoint.
        check: of a model of ``hf:``, load the weights too, for what only passes show; otherwise its configuration and
            the headers of its files are read.

    Raises:
        UserError: it is missing, truncated or foreign.
    """
    if is_foreign(source):
        return _inspect_foreign(str(source), check=check)
    info, header = read_info(source)
    facts = facts_of_header(info, header)
    if facts is None:
        facts = facts_of_built(source)
    return {
        "checkpoint": str(info.path),
        "sha256": info.hash,
        "model": info.model.name,
        "image_size": facts.image_size,
        "patch_size": facts.patch_size,
        "tokens": facts.tokens,
        "width": facts.width,
        "blocks": facts.blocks,
        "classes": len(info.class_names) or facts.classes,
        "parameters": facts.parameters,
        "active_parameters": facts.parameters - sum(layer.idle_parameters for layer in facts.layers.values()),
        "flops_per_image": facts.flops,
        "input": Framing(facts.image_size[0], info.model.crop_fraction).describe(),
        "normalisation": {"mean": info.model.mean, "std": info.model.std},
        "crop_fraction": info.model.crop_fraction,
        "training": info.training,
        "layers": [layer.row(name, info.model.router_name) for name, layer in facts.layers.items()],
    }


def facts_of_header(info: CheckpointInfo, header: Header) -> Facts | None:
    """Return what a checkpoint's header says of its model; None where that is not all that is said."""
    from moeprobe.models.nn.outline import outline  # brings torch

    info.check_router()
    model_outline = outline(info.model, header.shapes)
    if model_outline is None:
        return None
    layers = {
        name: LayerFacts(
            layer,
            model_outline.tokens,
            [
                shape
                for parameter, shape in header.shapes.items()
                if parameter.startswith(f"{name}.mlp.experts.")
            ],
        )
        for name, layer in model_outline.layers.items()
    }
    return Facts(
        image_size=[model_outline.image_size] * 2,
        patch_size=[model_outline.patch_size] * 2,
        tokens=model_outline.tokens,
        width=model_outline.width,
        blocks=model_outline.depth,
        classes=model_outline.classes,
        parameters=model_outline.parameters,
        flops=model_outline.dense_flops + sum(layer.expert_flops for layer in layers.values()),
        layers=layers,
    )


def facts_of_built(source: str | Path) -> Facts:
    """Return what a checkpoint's model is, by building it.

    Raises:
        UserError: the checkpoint is missing, truncated or foreign.
    """
    # Here, since it imports timm, which takes longer than all else.
    from moeprobe.models.checkpoints import checkpoint
    from moeprobe.models.nn.capture import moe_layers
    from moeprobe.models.nn.swin import num_tokens

    loaded, info = checkpoint.load(source)
    model: Any = loaded
    tokens = num_tokens(model)
    layers = {
        name: LayerFacts(
            layer, tokens[name], [tuple(parameter.shape) for parameter in layer.experts.parameters()]
        )
        for name, layer in moe_layers(model).items()
    }
    return Facts(
        image_size=list(model.patch_embed.img_size),
        patch_size=list(model.patch_embed.patch_size),
        tokens=model.patch_embed.num_patches + getattr(model, "num_prefix_tokens", 0),
        width=model.embed_dim,
        blocks=len(model.blocks) if info.model.swin is None else info.model.swin.depths,
        classes=model.num_classes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=_flops(model, layers),
        layers=layers,
    )


def _flops(model: Any, layers: Mapping[str, LayerFacts]) -> int:
    """Return the floating-point operations of one image.

    The dense part is counted as it runs; the experts are charged for what they are sent (tokens x experts per token),
    since what actually runs also depends on padding.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.zeros(1, 3, *model.patch_embed.img_size)
    # The counter does not know the fused attention of every device; written out, it is products that it counts.
    with (
        torch.inference_mode(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, depth=10) as counter,
    ):
        model.eval()(images)
    flop_counts = counter.get_flop_counts()
    total = counter.get_total_flops()
    for name, layer in layers.items():
        total -= sum(
            sum(flops.values()) for path, flops in flop_counts.items() if path.endswith(f"{name}.mlp.experts")
        )
        total += layer.expert_flops
    return int(total)


def _inspect_foreign(source: str, *, check: bool) -> dict[str, Any]:
    """Describe another program's model, as its adapter does, or by its provenance and the routing of a black image."""
    from moeprobe.adapters.schemes import describe_unopened

    description = None if check else describe_unopened(source)
    if description is not None:
        return {"checkpoint": source} | description
    from moeprobe.adapters.open import load_model  # here, since it imports timm

    opened = load_model(source, device="cpu")
    if isinstance(opened.model, Described):
        return {
            "checkpoint": source,
            "sha256": opened.provenance.get("sha256"),
        } | opened.model.describe()
    assert isinstance(opened.framing, Framing)
    routing = opened.model.trace(opened.framing.blank(), logits=False)[1]
    rows = []
    for name, layer in routing.layers.items():
        grid = layer.grid
        rows.append(
            {
                "layer": name,
                "router": layer.router,
                "num_experts": layer.num_experts,
                "top_k": layer.choices_per_token,
                "patches": None
                if grid is None
                else f"{grid.rows} x {grid.columns} of {grid.patch_size} pixels",
                "prefix_tokens": layer.num_prefix_tokens,
                "gates_sum_to_one": layer.gates_sum_to_one,
            }
        )
    return {
        "checkpoint": opened.name,
        "input": opened.framing.describe(),
        "classes": len(opened.class_names) or None,
        **opened.provenance,
        "layers": rows,
    }
