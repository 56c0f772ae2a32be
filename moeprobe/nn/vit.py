"""Vision transformers with MoE layers: timm's, with chosen blocks' MLP replaced.

``import moeprobe.nn`` makes ``timm.create_model("vmoe_small_patch32_224")`` work. Importing registers, nothing else.

Source: V-MoE (Riquelme et al. 2021) and its released program; block numbers are 0-based.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import register_model
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from moeprobe.catalog import ROUTERS
from moeprobe.errors import UserError
from moeprobe.nn.dispatch import CapacityRule
from moeprobe.nn.experts import ExpertLinear, MlpExperts
from moeprobe.nn.initialisation import initialise
from moeprobe.nn.moe import MoeLayer


@dataclass(frozen=True)
class MoeConfig:
    """How a transformer is made sparse; the defaults are V-MoE's.

    Attributes:
        layers: 0-based blocks whose MLP becomes a MoE layer; None = the last two odd blocks.
        capacity_factor: in training; None = no limit.
        eval_capacity_factor: in evaluation; None = no limit (nothing then depends on batch-mates).
        group_images: images that share a group, hence capacity and balancing losses, in training.
        noise_std: the router's noise has standard deviation noise_std / num_experts.
    """

    num_experts: int = 8
    top_k: int = 2
    layers: tuple[int, ...] | None = None
    router: str = "softmax_token_choice"
    noise_std: float = 1.0
    capacity_factor: float | None = 1.05
    eval_capacity_factor: float | None = None
    batch_priority: bool = False
    group_images: int = 8
    expert_dropout: float = 0.0
    bfloat16_dispatch: bool = False

    def blocks(self, depth: int) -> tuple[int, ...]:
        """Return the sparse blocks of a transformer of ``depth`` blocks.

        Raises:
            UserError: a block that does not exist.
        """
        if self.layers is None:
            return tuple(range(1, depth, 2))[-2:]
        wrong = [layer for layer in self.layers if not 0 <= layer < depth]
        if wrong or not self.layers:
            raise UserError(f"MoE layers must be among the blocks 0 to {depth - 1}; got {list(self.layers)}.")
        return tuple(sorted(set(self.layers)))


def make_sparse(model: VisionTransformer, config: MoeConfig) -> VisionTransformer:
    """Replace the MLP of the chosen blocks of any timm ViT by a MoE layer, in place ("upcycling").

    Every expert starts as a copy of the block's MLP (so the experts of a fresh model start equal, as V-MoE's do).

    Raises:
        UserError: the block's MLP is no plain two-layer perceptron, or the configuration does not fit.
    """
    for index in config.blocks(len(model.blocks)):
        block = model.blocks[index]
        block.mlp = _moe_layer(block, config, where=f"blocks.{index}")
    return model


def _moe_layer(block: Block, config: MoeConfig, *, where: str) -> MoeLayer:
    mlp = block.mlp
    if not isinstance(getattr(mlp, "fc1", None), nn.Linear) or not isinstance(mlp.fc2, nn.Linear):
        raise UserError(
            f"The MLP of {where} is a {type(mlp).__name__}; only plain two-layer MLPs can be made sparse."
        )
    if mlp.fc1.out_features != mlp.fc2.in_features or not isinstance(
        getattr(mlp, "norm", nn.Identity()), nn.Identity
    ):
        raise UserError(f"The MLP of {where} is gated or normalised inside and cannot be made sparse.")
    width, hidden_width = mlp.fc1.in_features, mlp.fc1.out_features
    experts = MlpExperts(
        config.num_experts, width, hidden_width, activation=mlp.act, dropout=config.expert_dropout
    )
    experts.fc1.copy_linear(mlp.fc1)
    experts.fc2.copy_linear(mlp.fc2)
    router = ROUTERS.get(config.router)(
        width,
        config.num_experts,
        config.top_k,
        noise_std=config.noise_std,
        capacity=CapacityRule(config.capacity_factor),
        eval_capacity=CapacityRule(config.eval_capacity_factor),
        batch_priority=config.batch_priority,
    )
    return MoeLayer(
        router, experts, group_images=config.group_images, bfloat16_dispatch=config.bfloat16_dispatch
    )


def resize_position_embedding(embedding: Tensor, *, num_prefix: int, rows: int, columns: int) -> Tensor:
    """Resample position embeddings ``(1, prefix + old patches, D)`` to another grid; prefix rows are copied.

    Bilinear with *aligned corners*, as V-MoE's program does it (timm's own is antialiased and centre-aligned).

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


def _vmoe(*, pre_logits: bool = True, **kwargs: Any) -> VisionTransformer:
    """Build a V-MoE; keyword arguments are timm's, ``pre_logits`` and the fields of ``MoeConfig``."""
    if kwargs.pop("pretrained", False):
        raise UserError("There are no downloadable weights for V-MoE models; load a checkpoint instead.")
    for key in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(key, None)
    fields = {field.name for field in dataclasses.fields(MoeConfig)}
    config = MoeConfig(**{name: kwargs.pop(name) for name in sorted(fields & kwargs.keys())})
    size, patch = kwargs["img_size"], kwargs["patch_size"]
    if size % patch:
        raise UserError(
            f"A resolution of {size} pixels cannot be cut into patches of {patch}; use a multiple of {patch}."
        )
    model = VisionTransformer(act_layer=_TanhGelu, **kwargs)
    if pre_logits:
        model.fc_norm = nn.Sequential(nn.Linear(model.embed_dim, model.embed_dim), nn.Tanh())
    initialise(model)
    return make_sparse(model, config)


class _TanhGelu(nn.GELU):
    """GELU in its tanh approximation, which is JAX's default."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


def _entry(variant: dict[str, Any], kwargs: dict[str, Any]) -> VisionTransformer:
    return _vmoe(**{**variant, **kwargs})


_SMALL = {"embed_dim": 512, "depth": 8, "num_heads": 8, "mlp_ratio": 4.0}
_BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_LARGE = {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_ratio": 4.0}


@register_model
def vmoe_tiny_patch8_32(**kwargs: Any) -> VisionTransformer:
    """Build a V-MoE that trains in a minute on two CPU cores: width 64, 4 blocks, MoE in blocks 1 and 3."""
    tiny = {"embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0, "patch_size": 8, "img_size": 32}
    return _entry({**tiny, "num_classes": 10, "pre_logits": False}, kwargs)


@register_model
def vmoe_small_patch32_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-S/32 as pretrained: 56,999,400 parameters with 1000 classes, MoE in blocks 5 and 7."""
    return _entry({**_SMALL, "patch_size": 32, "img_size": 224}, kwargs)


@register_model
def vmoe_small_patch32_384(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-S/32 as fine-tuned at 384 pixels: no pre-logits, capacity factor 1.5 in training."""
    return _entry(
        {**_SMALL, "patch_size": 32, "img_size": 384, "pre_logits": False, "capacity_factor": 1.5}, kwargs
    )


@register_model
def vmoe_base_patch32_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-B/32."""
    return _entry({**_BASE, "patch_size": 32, "img_size": 224}, kwargs)


@register_model
def vmoe_base_patch16_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-B/16."""
    return _entry({**_BASE, "patch_size": 16, "img_size": 224}, kwargs)


@register_model
def vmoe_large_patch16_224(**kwargs: Any) -> VisionTransformer:
    """Build V-MoE-L/16."""
    return _entry({**_LARGE, "patch_size": 16, "img_size": 224}, kwargs)
