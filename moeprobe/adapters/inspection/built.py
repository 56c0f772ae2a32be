"""A checkpoint's model, built to be counted: what any model is inspected by whose header does not say all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from moeprobe.adapters.inspection.facts import Facts, Layer
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.swin import num_tokens


def facts_of_built(source: str | Path) -> Facts:
    """Return what a checkpoint's model is, by building it.

    Raises:
        UserError: the checkpoint is missing, truncated or foreign.
    """
    loaded, info = checkpoint.load(source)
    model: Any = loaded
    tokens = num_tokens(model)
    layers = {
        name: Layer(layer, tokens[name], [tuple(one.shape) for one in layer.experts.parameters()])
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


def _flops(model: Any, layers: Mapping[str, Layer]) -> int:
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
    counted = counter.get_flop_counts()
    total = counter.get_total_flops()
    for name, layer in layers.items():
        total -= sum(
            sum(flops.values()) for path, flops in counted.items() if path.endswith(f"{name}.mlp.experts")
        )
        total += layer.expert_flops
    return int(total)
