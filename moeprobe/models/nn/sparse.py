"""A dense vision transformer made sparse: chosen blocks' MLP replaced by a MoE layer.

Source: V-MoE (Riquelme et al. 2021) and its released program; block numbers are 0-based.
"""

import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from moeprobe.errors import UserError
from moeprobe.models.config import LAYERS, NUM_EXPERTS, ROUTER, MoeConfig
from moeprobe.models.nn.experts import MlpExperts, StackedExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.routers.base import Router
from moeprobe.runtime.catalog import ROUTERS
from moeprobe.runtime.schema import Plugin, make_plugin

if TYPE_CHECKING:
    from moeprobe.models.timm import VisionTransformer


_SMALL = {"embed_dim": 512, "depth": 8, "num_heads": 8, "mlp_ratio": 4.0}
_BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_LARGE = {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_ratio": 4.0}
_TINY = {"embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "vmoe": {},
    "vmoe_tiny_patch8_32": {
        **_TINY, "patch_size": 8, "img_size": 32, "num_classes": 10, "pre_logits": False,
    },
    "vmoe_small_patch32_224": {**_SMALL, "patch_size": 32, "img_size": 224},
    "vmoe_small_patch32_384": {
        **_SMALL, "patch_size": 32, "img_size": 384, "pre_logits": False, "capacity_factor": 1.5,
    },
    "vmoe_base_patch32_224": {**_BASE, "patch_size": 32, "img_size": 224},
    "vmoe_base_patch16_224": {**_BASE, "patch_size": 16, "img_size": 224},
    "vmoe_large_patch16_224": {**_LARGE, "patch_size": 16, "img_size": 224},
}  # fmt: skip


# The configuration's key -> timm's argument.
SIZES = {
    "image_size": "img_size", "patch_size": "patch_size", "width": "embed_dim", "depth": "depth",
    "num_heads": "num_heads",
}  # fmt: skip

# Arguments of routers that a configuration sets in addition to the number of experts and the group, by their key there.
_OF_THE_MODEL = {
    "num_experts": "num_experts",
    "top_k": "top_k",
    "noise_std": "noise_std",
    "batch_priority": "batch_priority",
    "capacity": "capacity_factor",
    "eval_capacity": "eval_capacity_factor",
    "num_tokens": "image_size",
}


def make_sparse(model: "VisionTransformer", config: MoeConfig) -> "VisionTransformer":
    """Replace the MLP of the chosen blocks of any timm ViT by a MoE layer, in place ("upcycling").

    Every expert starts as a copy of the block's MLP (so the experts of a fresh model start equal, as V-MoE's do).

    Raises:
        UserError: the block's MLP is no plain two-layer perceptron, or the configuration does not fit.
    """
    num_tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    for index in sparse_blocks(config, depth=len(model.blocks)):
        block = model.blocks[index]
        block.mlp = make_moe_layer(block, config, num_tokens=num_tokens, where=f"blocks.{index}")
    return model


def sparse_blocks(config: MoeConfig, *, depth: int) -> tuple[int, ...]:
    """Return the sparse blocks of a transformer of ``depth`` blocks, from 0; none of a dense one.

    "last-N" = the last N odd blocks, "every-N" = every N-th block, the N-th first.

    Raises:
        UserError: a block that does not exist.
    """
    if config.dense:
        return ()
    layers = LAYERS if config.layers is None else config.layers
    if isinstance(layers, str):
        pattern = re.fullmatch(r"(last|every)-([1-9]\d*)", layers)
        if pattern is None:
            raise UserError(
                f"MoE layers are blocks, as in [1, 3], or last-N or every-N, as in last-2, or none; got {layers!r}."
            )
        number = int(pattern[2])
        odd, every = tuple(range(1, depth, 2)), tuple(range(number - 1, depth, number))
        blocks = odd[-number:] if pattern[1] == "last" else every
        if not blocks:
            raise UserError(f"{layers} names no block of a transformer of {depth}.")
        return blocks
    wrong = [layer for layer in layers if not 0 <= layer < depth]
    if wrong:
        raise UserError(f"MoE layers must be among the blocks 0 to {depth - 1}; got {layers}.")
    return tuple(sorted(set(layers)))


def make_moe_layer(block: nn.Module, config: MoeConfig, *, num_tokens: int, where: str) -> MoeLayer:
    """Return the MoE layer for the place of a block's MLP; ``where`` the block is, for sentences.

    Raises:
        UserError: the MLP is no plain two-layer perceptron, or the configuration does not fit.
    """
    mlp: Any = getattr(block, "mlp", None)
    if mlp is None:
        raise UserError(f"{where} is a {type(block).__name__} without an MLP of its own to be made sparse.")
    if not isinstance(getattr(mlp, "fc1", None), nn.Linear) or not isinstance(mlp.fc2, nn.Linear):
        raise UserError(
            f"The MLP of {where} is a {type(mlp).__name__}; only plain two-layer MLPs can be made sparse."
        )
    if mlp.fc1.out_features != mlp.fc2.in_features or not isinstance(
        getattr(mlp, "norm", nn.Identity()), nn.Identity
    ):
        raise UserError(f"The MLP of {where} is gated or normalized inside and cannot be made sparse.")
    width, hidden_width = mlp.fc1.in_features, mlp.fc1.out_features
    experts = MlpExperts(
        config.num_experts or NUM_EXPERTS,
        width,
        hidden_width,
        activation=mlp.act,
        dropout=config.expert_dropout or 0.0,
    )
    experts.fc1.copy_linear(mlp.fc1)
    experts.fc2.copy_linear(mlp.fc2)
    return assemble(config, experts, width, num_tokens=num_tokens)


def assemble(config: MoeConfig, experts: StackedExperts, width: int, *, num_tokens: int) -> MoeLayer:
    """Return the MoE layer of these experts, for tokens of ``width``, ``num_tokens`` of them in an image.

    Raises:
        UserError: the configuration does not fit.
    """
    router = make_router(config, width, num_tokens=num_tokens)
    return MoeLayer(
        router,
        experts,
        group_images=config.group_images or router.default_group_images,
        bfloat16_dispatch=bool(config.bfloat16_dispatch),
        whole_expert_dropout=config.whole_expert_dropout or 0.0,
    )


def make_router(config: MoeConfig, width: int, *, num_tokens: int) -> Router:
    """Return the configured router for tokens of ``width``, ``num_tokens`` of them in an image.

    Raises:
        UserError: there is none of this name, it has no such parameter, or a value does not fit.
    """
    router = config.router or Plugin(name=ROUTER)
    kind = ROUTERS.get(router.name)
    if kind.mixes_tokens and (config.group_images or 1) > 1:
        raise UserError(
            f"The router {router.name!r} mixes the tokens of one image: leave out model.group_images, "
            f"which is {config.group_images}."
        )
    for name in router.parameters:
        if name in _OF_THE_MODEL:
            raise UserError(
                f"A router's {name} is given as model.{_OF_THE_MODEL[name]}, not in its own section."
            )
    shared = {"top_k": config.top_k, "noise_std": config.noise_std, "batch_priority": config.batch_priority}
    configured: dict[str, Any] = {name: value for name, value in shared.items() if value is not None}
    if "num_tokens" in inspect.signature(kind).parameters:
        configured["num_tokens"] = num_tokens
    rule = kind.default_capacity
    if config.capacity_rounding is not None:
        rule = replace(rule, rounding=config.capacity_rounding)
    if config.capacity_multiple_of is not None:
        rule = replace(rule, multiple_of=config.capacity_multiple_of)
    if config.capacity_factor is not None:
        rule = replace(rule, factor=_factor(config.capacity_factor))
    eval_rule = rule if kind.fills_experts else replace(rule, factor=None)
    if config.eval_capacity_factor is not None:
        eval_rule = replace(rule, factor=_factor(config.eval_capacity_factor))
    plugin: Router = make_plugin(
        kind,
        router,
        what="router",
        **configured,
        width=width,
        num_experts=config.num_experts or NUM_EXPERTS,
        capacity=rule,
        eval_capacity=eval_rule,
    )
    return plugin


def _factor(value: float | Literal["none"]) -> float | None:
    return None if value == "none" else value
