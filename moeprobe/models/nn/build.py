"""From a model configuration to a model."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from moeprobe.errors import UserError
from moeprobe.models.config import ModelConfig, MoeConfig
from moeprobe.models.nn.sparse import SIZES, make_sparse
from moeprobe.models.nn.vit import check_patches
from moeprobe.models.timm import VisionTransformer, is_model, list_models, model_entrypoint, timm
from moeprobe.runtime.catalog import ROUTERS, describe_unknown
from moeprobe.runtime.foreign_errors import running

# What gives parameters their first values. On the device ``meta`` some of these import torch's compiler.
_DRAWS = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}


class _Undrawn(TorchFunctionMode):
    """Leaves parameters as they are where a model draws their first values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the tensor itself in the place of a draw."""
        keywords = kwargs or {}
        if func.__name__ in _DRAWS:
            return args[0] if args else keywords["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **keywords)


def build_unfilled(config: ModelConfig) -> VisionTransformer:
    """Build the configured model on torch's device ``meta``, for parameters that are assigned next.

    To draw parameters that are then overwritten takes as long as to import torch. Where a checkpoint may not hold all
    values, the model is built on the CPU: with a buffer that is not saved, a plug-in's router, or code of a user.

    Raises:
        UserError: as ``build_model``.
    """
    if config.router_name in ROUTERS.outside() or is_of_user(config.name):
        return build_model(config)
    with torch.device("meta"), _Undrawn():
        model = build_model(config)
    is_whole = {name for name, _ in model.named_buffers()} <= model.state_dict().keys()
    return model if is_whole else build_model(config)


def build_model(config: ModelConfig) -> VisionTransformer:
    """Build the configured model with fresh parameters; any timm ViT that is not sparse is made so.

    Raises:
        UserError: there is no such model, it is no ViT, or the values do not fit together.
    """
    if config.swin is not None:
        raise UserError("A Swin-MoE (model.swin) can be imported and probed, not trained.")
    if not is_model(config.name):
        raise UserError(
            describe_unknown("model", config.name, list_models("v*moe*")) + " Any ViT of timm works too."
        )
    if config.num_classes is None:
        raise UserError("The model needs model.num_classes.")
    arguments: dict[str, Any] = {"num_classes": config.num_classes}
    arguments |= {
        theirs: getattr(config, ours) for ours, theirs in SIZES.items() if getattr(config, ours) is not None
    }
    if config.hidden_width is not None:
        arguments["mlp_ratio"] = _mlp_ratio(config.hidden_width, config.width)
    if is_ours(config.name):
        keys = _head(config) | {key: getattr(config, key) for key in MoeConfig.model_fields}
        return _create(
            config.name, arguments | {key: value for key, value in keys.items() if value is not None}
        )
    for key, value in _head(config).items():
        if value is not None:
            raise UserError(
                f"model.{key} is for V-MoE's own models; {config.name!r} keeps its head as it is."
            )
    return make_sparse(_create(config.name, arguments), config)


def _head(config: ModelConfig) -> dict[str, Any]:
    return {"pre_logits": config.pre_logits, "head": config.head}


def is_ours(name: str) -> bool:
    """Whether a model is a V-MoE of ``nn.vit``, and not one of timm's that is made sparse."""
    return is_model(name) and model_entrypoint(name).__module__.startswith("moeprobe.")


def is_of_user(name: str) -> bool:
    """Whether a model's code is neither timm's nor ours.

    Such code may keep tensors that are no buffers, or read values while it builds; the device ``meta`` has none.
    """
    return is_model(name) and model_entrypoint(name).__module__.partition(".")[0] not in ("moeprobe", "timm")


def running_of_user(name: str, *, doing: str) -> AbstractContextManager[None]:
    """Turn what a model of a user raises meanwhile into a sentence; errors of timm's and our models stay as they are.

    Args:
        name: of the model.
        doing: what it does, e.g. "while it was built".
    """
    return running(f"The model {name!r}", doing=doing) if is_of_user(name) else nullcontext()


def create(name: str, **arguments: Any) -> Module:
    """Build a model that timm knows by its name, also one of a user.

    Raises:
        UserError: the code of a user's model raised an error.
    """
    with running_of_user(name, doing="while it was built"):
        model: Module = timm.create_model(name, **arguments)
    return model


def _create(name: str, arguments: dict[str, Any]) -> VisionTransformer:
    try:
        model = create(name, **arguments)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"timm cannot build {name!r} with these values: {reason}.") from None
    if not isinstance(model, VisionTransformer):
        raise UserError(f"{name!r} is a {type(model).__name__}; only vision transformers can be made sparse.")
    check_patches(model.patch_embed.img_size[0], model.patch_embed.patch_size[0])
    return model


def _mlp_ratio(hidden_width: int, width: int | None) -> float:
    """Return the ratio that timm multiplies the width with, and cuts off: half a unit keeps it from rounding down."""
    if width is None:
        raise UserError("model.hidden_width also needs model.width.")
    return (hidden_width + 0.5) / width
