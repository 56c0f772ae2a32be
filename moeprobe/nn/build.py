"""From a model configuration to a model."""

from typing import Any

import timm
from timm.models import is_model, list_models, model_entrypoint
from timm.models.vision_transformer import VisionTransformer

from moeprobe.catalog import unknown
from moeprobe.config import ModelConfig
from moeprobe.errors import UserError
from moeprobe.nn.sparse import MoeConfig, make_sparse

_MOE_KEYS = (
    "num_experts", "layers", "top_k", "noise_std", "capacity_factor", "eval_capacity_factor", "capacity_rounding",
    "capacity_multiple_of", "batch_priority", "group_images", "expert_dropout", "bfloat16_dispatch",
)  # fmt: skip


def build_model(config: ModelConfig) -> VisionTransformer:
    """Build the configured model with fresh parameters; any timm ViT that is not sparse is made so.

    Raises:
        UserError: there is no such model, it is no ViT, or the values do not fit together.
    """
    if not is_model(config.name):
        raise UserError(unknown("model", config.name, list_models("v*moe*")) + " Any ViT of timm works too.")
    if config.num_classes is None:
        raise UserError("The model needs model.num_classes.")
    arguments: dict[str, Any] = {"num_classes": config.num_classes}
    if config.image_size is not None:
        arguments["img_size"] = config.image_size
    if config.patch_size is not None:
        arguments["patch_size"] = config.patch_size
    moe = {key: getattr(config, key) for key in _MOE_KEYS if getattr(config, key) is not None}
    if isinstance(config.layers, list):
        moe["layers"] = tuple(config.layers)
    if config.router is not None:
        moe |= {"router": config.router.name, "router_options": config.router.parameters}
    if model_entrypoint(config.name).__module__.startswith("moeprobe."):
        arguments |= {key: value for key, value in _head(config).items() if value is not None}
        return _create(config.name, arguments | moe)
    for key, value in _head(config).items():
        if value is not None:
            raise UserError(
                f"model.{key} is for V-MoE's own models; {config.name!r} keeps its head as it is."
            )
    dense = _create(config.name, arguments)
    return make_sparse(dense, MoeConfig(**moe))


def _head(config: ModelConfig) -> dict[str, Any]:
    return {"pre_logits": config.pre_logits, "head": config.head}


def _create(name: str, arguments: dict[str, Any]) -> VisionTransformer:
    try:
        model = timm.create_model(name, **arguments)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"timm cannot build {name!r} with these values: {_one_line(error)}.") from None
    if not isinstance(model, VisionTransformer):
        raise UserError(f"{name!r} is a {type(model).__name__}; only vision transformers can be made sparse.")
    size, patch = model.patch_embed.img_size[0], model.patch_embed.patch_size[0]
    if size % patch:
        raise UserError(
            f"A resolution of {size} pixels cannot be cut into patches of {patch}; use a multiple of {patch}."
        )
    return model


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
