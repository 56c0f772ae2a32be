"""Optimizer and learning-rate schedule: timm's, with V-MoE's rule of what is decayed."""

import inspect
import math
from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers
from timm.scheduler import CosineLRScheduler, PolyLRScheduler
from torch import nn

from moeprobe.errors import UserError
from moeprobe.models.config import OptimizerConfig, ScheduleConfig
from moeprobe.models.nn.vit import kernel_names
from moeprobe.runtime.catalog import unknown

# torch's own optimizers that update a parameter in one pass over it and its moments, and where they do.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_FUSED_DEVICES = ("cpu", "cuda", "mps")


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of what is not frozen; weight decay acts on the kernels alone.

    ``adamw`` is Adam with decoupled decay, ``momentum`` heavy-ball SGD (timm's ``sgd`` is Nesterov's).

    Raises:
        UserError: timm has no such optimizer, or it does not take these values.
    """
    decayed = kernel_names(model)
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    groups = [
        {
            "params": [p for name, p in parameters.items() if name in decayed],
            "weight_decay": config.weight_decay,
        },
        {"params": [p for name, p in parameters.items() if name not in decayed], "weight_decay": 0.0},
    ]
    names = list_optimizers()
    if config.name not in names:
        raise UserError(unknown("optimizer", config.name, names))
    kind = get_optimizer_class(config.name, bind_defaults=False)
    offered = {"betas": tuple(config.betas), "momentum": config.momentum}
    taken = inspect.signature(kind.__init__).parameters
    extra: dict[str, Any] = {key: value for key, value in offered.items() if key in taken}
    # Of those that are spread over processes, torch's fused kernels know some alone.
    plain = all(p.device.type in _FUSED_DEVICES and not hasattr(p, "to_local") for p in parameters.values())
    if kind in _FUSED and plain:
        extra["fused"] = True
    try:
        return create_optimizer_v2(
            groups, opt=config.name, lr=config.learning_rate, weight_decay=0.0, **extra
        )
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"timm cannot make the optimizer {config.name!r} of this configuration: {error}."
        ) from None


def make_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, total_steps: int
) -> CosineLRScheduler | PolyLRScheduler:
    """Return the schedule: from 0 linearly to the peak over the warm-up, then down to ``end_value`` at the end.

    Raises:
        UserError: the warm-up is not shorter than the run.
    """
    if config.warmup_steps >= total_steps and config.warmup_steps > 0:
        raise UserError(
            f"A warm-up of {config.warmup_steps} steps does not fit a run of {total_steps}: lower "
            "schedule.warmup_steps."
        )
    kind = {"cosine": CosineLRScheduler, "linear": PolyLRScheduler}[config.name]
    extra = {"power": 1.0} if config.name == "linear" else {}
    return kind(
        optimizer,
        t_initial=total_steps - config.warmup_steps,
        lr_min=config.end_value,
        warmup_t=config.warmup_steps,
        warmup_lr_init=0.0,
        warmup_prefix=True,
        t_in_epochs=False,
        **extra,
    )


def total_steps(*, steps: int | None, epochs: float | None, num_images: int, batch_size: int) -> int:
    """Return the number of steps of a run; a last incomplete batch of an epoch is dropped.

    Raises:
        UserError: there is less than one batch of images.
    """
    if num_images < batch_size:
        raise UserError(f"The training split has {num_images} images, fewer than one batch of {batch_size}.")
    if steps is not None:
        return steps
    assert epochs is not None
    # 0.29 epochs of 100 steps are 28.999999999999996 in floating point, and 29 steps.
    return max(1, math.floor(epochs * (num_images // batch_size) + 1e-6))
