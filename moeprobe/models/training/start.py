"""The model that a training starts from: fresh, upcycled, or from a checkpoint."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer

from moeprobe.models.checkpoints.checkpoint import initialise_from
from moeprobe.models.config import ModelConfig, TrainConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.training import checks
from moeprobe.models.training.dense_weights import upcycle_from
from moeprobe.runtime.seeds import torch_seed


def start_model(
    config: TrainConfig, model_config: ModelConfig, class_names: Sequence[str]
) -> tuple[VisionTransformer, dict[str, Any] | None]:
    """Return the model with its first parameters, and where dense ones are from; None where there are none.

    Raises:
        UserError: there are no such weights, or the parts do not fit together.
    """
    checks.check_start(config)
    torch.manual_seed(torch_seed(config.seed, "initialise"))
    model = build_model(model_config)
    upcycled = None if config.model.upcycle is None else upcycle_from(model, config.model)
    if config.initialise is not None:
        initialise_from(
            model,
            config.initialise.checkpoint,
            keep_head=config.initialise.keep_head,
            class_names=tuple(class_names),
        )
    checks.check_groups(model, config)
    return model, upcycled


def compile_model(model: Any) -> None:
    """Compile what does not route: routers stay eager, so that what they decide can be captured."""
    for block in model.blocks:
        block.attn.compile()
        (block.mlp.experts if hasattr(block.mlp, "experts") else block.mlp).compile()
