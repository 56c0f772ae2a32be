"""The model that a training starts from: fresh, upcycled, or from a checkpoint."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import initialise_from
from moeprobe.models.config import ModelConfig, TrainConfig, choose
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.mae import Decoder, num_visible
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training import checks
from moeprobe.models.training.dense_weights import upcycle_from
from moeprobe.runtime.seeds import torch_seed


def start_model(
    config: TrainConfig, model_config: ModelConfig, class_names: Sequence[str]
) -> tuple[VisionTransformer, dict[str, Any]]:
    """Return the model with its first parameters, and which these are: ``upcycled`` or ``started_from``, or nothing.

    What is to be pretrained by masked autoencoding has a ``decoder`` in addition, which no checkpoint keeps.

    Raises:
        UserError: there are no such weights, or the parts do not fit together.
    """
    checks.check_start(config)
    torch.manual_seed(torch_seed(config.seed, "initialise"))
    model = build_model(model_config)
    start = {} if config.model.upcycle is None else {"upcycled": upcycle_from(model, config.model)}
    if config.initialise is not None:
        weights = initialise_from(
            model,
            config.initialise.checkpoint,
            keep_head=config.initialise.keep_head,
            fresh=config.initialise.fresh,
            class_names=tuple(class_names),
        )
        start = {"started_from": weights}
    if config.mae is not None:
        num_visible(model.patch_embed.num_patches, config.mae.mask)
        model.decoder = Decoder(model, config.mae)
    checks.check_groups(model, config)
    freeze(model, config.freeze)
    return model, start


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters that patterns choose out of training: without a gradient, no optimizer and no decay has them.

    Raises:
        UserError: a pattern matches no parameter, or nothing is left that could learn.
    """
    parameters = dict(model.named_parameters())
    frozen = choose(patterns, parameters, key="freeze")
    if len(frozen) == len(parameters):
        raise UserError(
            f"freeze={list(patterns)} leaves no parameter to train; take some out again, e.g. '!*.router.*'."
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    if frozen:
        checks.check_routers_learn(model)


def compile_model(model: Any) -> None:
    """Compile what does not route: routers stay eager, so that what they decide can be captured."""
    for block in model.blocks:
        block.attn.compile()
        (block.mlp.experts if hasattr(block.mlp, "experts") else block.mlp).compile()
