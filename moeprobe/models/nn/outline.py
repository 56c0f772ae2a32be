"""What a V-MoE is and costs, by its configuration and the shapes of its parameters: nothing is built but its routers.

Importing timm takes longer than all that is asked here. Axes: T tokens, D width, M hidden width, N patches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from moeprobe.models.config import NUM_EXPERTS, ModelConfig, MoeConfig
from moeprobe.models.nn.experts import StackedExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.sparse import SIZES, VARIANTS, assemble, sparse_blocks

Shapes = Mapping[str, tuple[int, ...]]
# The configuration's key -> the argument of a variant.
_SIZES = SIZES | {key: key for key in ("num_classes", "pre_logits", "head")}


@dataclass(frozen=True)
class Outline:
    """A model without its weights.

    Attributes:
        layers: its MoE layers by name; their experts hold nothing.
        parameters: how many there are.
        dense_flops: of one image, for all but the experts; a multiply-add is two.
    """

    image_size: int
    patch_size: int
    tokens: int
    width: int
    depth: int
    classes: int
    layers: dict[str, MoeLayer]
    parameters: int
    dense_flops: int


class _NoExperts(StackedExperts):
    """Gives back what it is sent."""

    def run_padded(self, rows: Tensor) -> Tensor:
        return rows

    def run_ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        return rows


def outline(config: ModelConfig, shapes: Shapes) -> Outline | None:
    """Return the outline of a checkpoint's model; None where it is no V-MoE of ``vit`` with exactly these parameters.

    Args:
        config: how to build the model.
        shapes: of its parameters and buffers, by name.

    Raises:
        UserError: the configuration of a router does not fit.
    """
    sizes = _sizes(config)
    if sizes is None:
        return None
    size, patch, width, depth = (int(sizes[key]) for key in ("img_size", "patch_size", "embed_dim", "depth"))
    hidden = int(sizes["hidden_width"])
    prefix = int(sizes.get("head", "token") == "token")
    patches = (size // patch) ** 2
    tokens = patches + prefix
    variant = {key: value for key, value in VARIANTS[config.name].items() if key in MoeConfig.model_fields}
    configured = {
        key: getattr(config, key) for key in MoeConfig.model_fields if getattr(config, key) is not None
    }
    moe = MoeConfig(**{**variant, **configured})
    layers = {
        f"blocks.{index}": assemble(moe, _NoExperts(), width, num_tokens=tokens).eval()
        for index in sparse_blocks(moe, depth=depth)
    }
    pre_logits = sizes.get("pre_logits", True)
    read = 0 if not pre_logits else width if pre_logits is True else int(pre_logits)
    expected = _ends(sizes, tokens=tokens, prefix=prefix, read=read)
    experts = moe.num_experts or NUM_EXPERTS
    for number in range(depth):
        expected |= _block(f"blocks.{number}", layers.get(f"blocks.{number}"), width, hidden, experts)
    if dict(shapes) != expected:
        return None
    buffers = {
        f"{name}.mlp.router.{buffer}"
        for name, layer in layers.items()
        for buffer, _ in layer.router.named_buffers()
    }
    attention = 8 * tokens * width**2 + 4 * tokens**2 * width
    flops = 2 * patches * math.prod(expected["patch_embed.proj.weight"]) + depth * attention
    flops += (depth - len(layers)) * 4 * tokens * width * hidden
    flops += 2 * width * read + 2 * math.prod(expected["head.weight"])
    flops += sum(_count_flops(layer, tokens, width) for layer in layers.values())
    return Outline(
        image_size=size,
        patch_size=patch,
        tokens=tokens,
        width=width,
        depth=depth,
        classes=expected["head.weight"][0],
        layers=layers,
        parameters=sum(math.prod(shape) for name, shape in expected.items() if name not in buffers),
        dense_flops=flops,
    )


def _sizes(config: ModelConfig) -> dict[str, Any] | None:
    """Return the arguments of the model and its hidden width; None where it is none of ``vit``, or they do not fit."""
    if config.swin is not None or config.upcycle is not None or config.name not in VARIANTS:
        return None
    overrides = {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()}
    sizes = VARIANTS[config.name] | {name: value for name, value in overrides.items() if value is not None}
    if config.hidden_width is not None:
        sizes["hidden_width"] = config.hidden_width
    elif {"embed_dim", "mlp_ratio"} <= sizes.keys():
        sizes["hidden_width"] = int(sizes["embed_dim"] * sizes["mlp_ratio"])
    needed = {"img_size", "patch_size", "embed_dim", "depth", "num_heads", "hidden_width", "num_classes"}
    if not needed <= sizes.keys() or config.num_classes is None:
        return None
    divisible = sizes["img_size"] % sizes["patch_size"] == 0 and sizes["embed_dim"] % sizes["num_heads"] == 0
    return sizes if divisible else None


def _ends(sizes: dict[str, int], *, tokens: int, prefix: int, read: int) -> dict[str, tuple[int, ...]]:
    """Return the parameters before and after the blocks; ``read`` is the width of the pre-logits, 0 = none."""
    width, patch, classes = sizes["embed_dim"], sizes["patch_size"], sizes["num_classes"]
    shapes: dict[str, tuple[int, ...]] = {
        **({"cls_token": (1, 1, width)} if prefix else {}),
        "pos_embed": (1, tokens, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    if read:
        shapes |= {"fc_norm.0.weight": (read, width), "fc_norm.0.bias": (read,)}
    return shapes | {"head.weight": (classes, read or width), "head.bias": (classes,)}


def _block(
    name: str, layer: MoeLayer | None, width: int, hidden: int, experts: int
) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a block, whose MLP is dense without a ``layer``."""
    shapes: dict[str, tuple[int, ...]] = {
        "attn.qkv.weight": (3 * width, width),
        "attn.qkv.bias": (3 * width,),
        "attn.proj.weight": (width, width),
        "attn.proj.bias": (width,),
    }
    for norm in ("norm1", "norm2"):
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    if layer is None:
        shapes |= {"mlp.fc1.weight": (hidden, width), "mlp.fc1.bias": (hidden,)}
        shapes |= {"mlp.fc2.weight": (width, hidden), "mlp.fc2.bias": (width,)}
    else:
        shapes |= {
            "mlp.experts.fc1.weight": (experts, width, hidden),
            "mlp.experts.fc1.bias": (experts, hidden),
            "mlp.experts.fc2.weight": (experts, hidden, width),
            "mlp.experts.fc2.bias": (experts, width),
        }
        state = layer.router.state_dict()
        shapes |= {f"mlp.router.{parameter}": tuple(tensor.shape) for parameter, tensor in state.items()}
    return {f"{name}.{parameter}": shape for parameter, shape in shapes.items()}


class _Counter(TorchDispatchMode):
    """Counts as torch's ``FlopCounterMode`` does, without the compiler, whose import takes longer than torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked by torch; where it does not ask, the compiler is imported, and the number is the same.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


def _count_flops(layer: MoeLayer, tokens: int, width: int) -> int:
    """Return the operations of a layer without its experts, for one image."""
    # Not in inference mode, where products that consist of others are not seen.
    with torch.no_grad(), _Counter() as counter:
        layer(torch.zeros(1, tokens, width))
    return counter.flops
