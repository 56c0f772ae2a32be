"""What a checkpoint is, without running it on data."""

from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import moeprobe.models.nn  # noqa: F401  (registers the models)
from moeprobe.adapters.open import load_model
from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.swin import num_tokens
from moeprobe.routing.capabilities import Described
from moeprobe.runtime.catalog import is_foreign


def inspect_checkpoint(source: str | Path) -> dict[str, Any]:
    """Describe a checkpoint: architecture, parameters, active parameters, FLOPs, layers, normalization, provenance.

    Active parameters are those that one token meets: of each MoE layer's experts, ``top_k`` are counted, or as many as
    take a token on average where the experts choose, or all where every slot holds a share of every token. FLOPs are
    those of one image in a group of its own, with unlimited capacity where there can be; a multiply-add is counted as
    two. Of a foreign model (``py:…``) what its adapter knows is shown instead.

    Raises:
        UserError: it is missing, truncated or foreign.
    """
    if is_foreign(source):
        return _inspect_foreign(source)
    loaded, info = checkpoint.load(source)
    model: Any = loaded
    layers = moe_layers(model)
    total = sum(parameter.numel() for parameter in model.parameters())
    tokens = num_tokens(model)
    idle = 0
    rows = []
    for name, layer in layers.items():
        router, experts = layer.router, sum(parameter.numel() for parameter in layer.experts.parameters())
        met = (
            router.num_experts
            if router.mixes_tokens
            else min(router.experts_per_token(tokens[name]), router.num_experts)
        )
        idle += round(experts * (router.num_experts - met) / router.num_experts)
        rows.append(
            {
                "layer": name,
                "router": info.model.router_name,
                "num_experts": router.num_experts,
                "top_k": router.top_k,
                "noise_std": router.noise_std,
                "capacity_factor": router.capacity.factor,
                "eval_capacity_factor": router.eval_capacity.factor,
                "group_images": layer.group_images,
                "expert_parameters": experts,
            }
        )
    return {
        "checkpoint": str(info.path),
        "sha256": info.hash,
        "model": info.model.name,
        "image_size": list(model.patch_embed.img_size),
        "patch_size": list(model.patch_embed.patch_size),
        "tokens": model.patch_embed.num_patches + getattr(model, "num_prefix_tokens", 0),
        "width": model.embed_dim,
        "blocks": len(model.blocks) if info.model.swin is None else info.model.swin.depths,
        "classes": len(info.class_names) or model.num_classes,
        "parameters": total,
        "active_parameters": total - idle,
        "flops_per_image": _flops(model),
        "input": Framing(model.patch_embed.img_size[0], info.model.crop_fraction).described(),
        "normalisation": {"mean": info.model.mean, "std": info.model.std},
        "crop_fraction": info.model.crop_fraction,
        "training": info.training,
        "layers": rows,
    }


def _inspect_foreign(source: str | Path) -> dict[str, Any]:
    """Describe another program's model, as its adapter does, or by its provenance and the routing of a black image."""
    opened = load_model(source, device="cpu")
    if isinstance(opened.model, Described):
        return {
            "checkpoint": str(source),
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
        "input": opened.framing.described(),
        "classes": len(opened.class_names) or None,
        **opened.provenance,
        "layers": rows,
    }


def _flops(model: Any) -> int:
    """Return the floating-point operations of one image.

    The dense part is counted as it runs; the experts are charged for what they are sent (tokens x experts per token),
    since what actually runs also depends on padding.
    """
    layers = moe_layers(model)
    images = torch.zeros(1, 3, *model.patch_embed.img_size)
    tokens = num_tokens(model)
    # The counter does not know the fused attention of every device; written out, it is products that it counts.
    with (
        torch.inference_mode(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, depth=10) as counter,
    ):
        model.eval()(images)
    counted = counter.get_flop_counts()
    total = counter.get_total_flops()
    for name, layer in layers.items():
        total -= sum(
            sum(flops.values()) for path, flops in counted.items() if path.endswith(f"{name}.mlp.experts")
        )
        matrices = [parameter.shape[1:] for parameter in layer.experts.parameters() if parameter.ndim == 3]
        sent = round(tokens[name] * layer.router.experts_per_token(tokens[name]))
        total += sent * sum(2 * rows * columns for rows, columns in matrices)
    return int(total)
