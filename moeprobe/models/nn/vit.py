"""Vision transformers with MoE layers: timm's, with chosen blocks' MLP replaced.

``import moeprobe.models.nn.vit`` makes ``timm.create_model("vmoe_small_patch32_224")`` work.
Importing registers, nothing else.

Source: V-MoE (Riquelme et al. 2021) and its released program; block numbers are 0-based.
"""

import math
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.experts import ExpertLinear
from moeprobe.models.nn.initialization import initialise
from moeprobe.models.nn.sparse import SIZES, VARIANTS, make_sparse
from moeprobe.models.timm import VisionTransformer, register_model
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.schema import sentence


def resize_position_embedding(embedding: Tensor, *, num_prefix: int, rows: int, columns: int) -> Tensor:
    """Resample position embeddings ``(1, prefix + old patches, D)`` to another grid; prefix rows are copied.

    Bilinear with *aligned corners*, as V-MoE's program does it (timm's own is antialiased and center-aligned).

    Raises:
        UserError: the old grid is not square.
    """
    prefix, grid = embedding[:, :num_prefix], embedding[:, num_prefix:]
    side = math.isqrt(grid.shape[1])
    if side * side != grid.shape[1]:
        raise UserError(
            f"Position embeddings of {grid.shape[1]} patches do not form a square and cannot be resized."
        )
    if (side, side) == (rows, columns):
        return embedding
    grid = grid.unflatten(1, (side, side)).permute(0, 3, 1, 2)
    grid = nn.functional.interpolate(grid, size=(rows, columns), mode="bilinear", align_corners=True)
    return torch.cat([prefix, grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def kernel_names(model: nn.Module) -> set[str]:
    """Return the parameters that weight decay acts on: kernels of linear maps, convolutions and experts.

    An explicit rule, because the usual "one-dimensional parameters are spared" would decay the stacked biases of
    the experts, which have two dimensions, and the position embeddings.
    """
    owners = (nn.Linear, nn.Conv2d, ExpertLinear)
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, owners)}


# What the head reads: the class token, or the mean of the (normalized) patches, without a class token.
_HEADS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"global_pool": "avg", "class_token": False, "fc_norm": False},
}


def _vmoe(*, pre_logits: bool | int = True, head: str = "token", **kwargs: Any) -> VisionTransformer:
    """Build a V-MoE; keyword arguments are timm's, ``pre_logits``, ``head`` and the fields of ``MoeConfig``.

    ``pre_logits`` is the width of the linear map and tanh before the head (flax's ``representation_size``); True is the
    blocks' own.
    """
    if head not in _HEADS:
        raise UserError(describe_unknown("head", head, _HEADS))
    if kwargs.pop("pretrained", False):
        raise UserError("There are no downloadable weights for V-MoE models; load a checkpoint instead.")
    for key in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(key, None)
    config = _moe_config({name: kwargs.pop(name) for name in MoeConfig.model_fields if name in kwargs})
    check_patches(kwargs["img_size"], kwargs["patch_size"])
    model = VisionTransformer(act_layer=_TanhGelu, **{**_HEADS[head], **kwargs})
    if pre_logits:
        width = model.embed_dim if pre_logits is True else pre_logits
        model.fc_norm = nn.Sequential(nn.Linear(model.embed_dim, width), nn.Tanh())
        if isinstance(model.head, nn.Linear):
            model.head = nn.Linear(width, model.head.out_features)
    initialise(model)
    return make_sparse(model, config)


def check_patches(size: int, patch: int) -> None:
    """Raise ``UserError`` unless patches fill an image; sides in pixels."""
    if size % patch:
        raise UserError(
            f"A resolution of {size} pixels cannot be cut into patches of {patch}; use a multiple of {patch}."
        )


def _moe_config(content: dict[str, Any]) -> MoeConfig:
    try:
        return MoeConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(sentence(error, MoeConfig, what="model")) from None


class _TanhGelu(nn.GELU):
    """GELU in its tanh approximation, which is JAX's default."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


def _entry(name: str, kwargs: dict[str, Any]) -> VisionTransformer:
    return _vmoe(**{**VARIANTS[name], **kwargs})


@register_model
def vmoe(**kwargs: Any) -> VisionTransformer:
    """Build a V-MoE of any size: resolution, patch size, width, depth, heads and hidden width must be given."""
    needed = SIZES | {"hidden_width": "mlp_ratio"}
    missing = [key for key, name in needed.items() if name not in kwargs]
    if missing:
        raise UserError(f"The model 'vmoe' has no sizes of its own; give {', '.join(missing)}.")
    return _entry("vmoe", kwargs)


@register_model
def vmoe_tiny_patch8_32(**kwargs: Any) -> VisionTransformer:
    """Build a V-MoE that trains in a minute on two CPU cores: width 64, 4 blocks, MoE in blocks 1 and 3."""
    return _entry("vmoe_tiny_patch8_32", kwargs)


@register_model
def vmoe_small_patch32_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-S/32 as pretrained: 56,999,400 parameters with 1000 classes, MoE in blocks 5 and 7."""
    return _entry("vmoe_small_patch32_224", kwargs)


@register_model
def vmoe_small_patch32_384(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-S/32 as fine-tuned at 384 pixels: no pre-logits, capacity factor 1.5 in training."""
    return _entry("vmoe_small_patch32_384", kwargs)


@register_model
def vmoe_base_patch32_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-B/32."""
    return _entry("vmoe_base_patch32_224", kwargs)


@register_model
def vmoe_base_patch16_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-B/16."""
    return _entry("vmoe_base_patch16_224", kwargs)


@register_model
def vmoe_large_patch16_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-L/16."""
    return _entry("vmoe_large_patch16_224", kwargs)
