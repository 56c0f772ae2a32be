"""Models that are opened to be inspected: a checkpoint whose header does not say all, and another program's model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from moeprobe.adapters.inspection.facts import Facts, LayerFacts
from moeprobe.adapters.open import load_model
from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.swin import num_tokens
from moeprobe.routing.capabilities import Described


def facts_of_built(source: str | Path) -> Facts:
    """Return what a checkpoint's model is, by building it.

    Raises:
        UserError: the checkpoint is missing, truncated or foreign.
    """
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


def inspect_foreign(source: str | Path) -> dict[str, Any]:
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
