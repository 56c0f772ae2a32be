"""The parts of a training step: losses, clipped gradients, and timm's optimizers and learning-rate schedules.

Weight decay follows V-MoE's rule.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.config import OptimizerConfig, ScheduleConfig
from moeprobe.models.nn.vit import kernel_names
from moeprobe.models.timm import (
    CosineLRScheduler,
    PolyLRScheduler,
    create_optimizer_v2,
    get_optimizer_class,
    list_optimizers,
)
from moeprobe.models.training.objectives.base import Term
from moeprobe.runtime.catalog import describe_unknown

# torch's own optimizers that update a parameter in one pass over it and its moments, and where they do.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_FUSED_DEVICES = ("cpu", "cuda", "mps")


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the trained parameters; weight decay acts on the kernels alone.

    ``adamw`` is Adam with decoupled decay, ``momentum`` heavy-ball SGD (timm's ``sgd`` is Nesterov's).

    Raises:
        UserError: timm has no such optimizer, or it does not take these values.
    """
    decayed = kernel_names(model)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [
        {
            "params": [p for name, p in parameters.items() if name in decayed],
            "weight_decay": config.weight_decay,
        },
        {"params": [p for name, p in parameters.items() if name not in decayed], "weight_decay": 0.0},
    ]
    names = list_optimizers()
    if config.name not in names:
        raise UserError(describe_unknown("optimizer", config.name, names))
    kind = get_optimizer_class(config.name, bind_defaults=False)
    offered = {"betas": tuple(config.betas), "momentum": config.momentum}
    arguments = inspect.signature(kind.__init__).parameters
    extra: dict[str, Any] = {key: value for key, value in offered.items() if key in arguments}
    # torch's fused kernels support only some parameters that are spread over processes, so these do without.
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


def supervised_loss(logits: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Return the mean over rows ``(B, classes)`` of the cross-entropy with soft targets.

    ``softmax``: of the softmax. ``sigmoid``: of a sigmoid per class, *summed* over the classes, as V-MoE is
    pretrained.
    """
    if kind == "softmax":
        return nn.functional.cross_entropy(logits, targets)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1).mean()


def total_loss(main: Tensor, terms: Mapping[str, Term]) -> Tensor:
    """Return the supervised loss with the weighted terms; a weight of 0 leaves its term out."""
    weighted = [term.weight * term.value for term in terms.values() if term.weight > 0]
    return main + torch.stack(weighted).sum() if weighted else main


def gradient_norm(model: nn.Module) -> Tensor:
    """Return the global norm of the gradients on the parameters."""
    return nn.utils.get_total_norm(
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    )


def clip(
    model: nn.Module, *, norm: float | None, measure: Callable[[nn.Module], Tensor] = gradient_norm
) -> Tensor:
    """Clip the gradients on the parameters to a global norm, None = none; return the norm that they had."""
    total_norm = measure(model)
    if norm is not None and not _known_within(total_norm, norm):
        # Collected once: walking through the modules takes a while.
        nn.utils.clip_grads_with_norm_(list(model.parameters()), norm, total_norm)
    return total_norm


def _known_within(norm: Tensor, limit: float) -> bool:
    """Whether gradients need no clipping; False on an accelerator, where reading the norm would wait for it."""
    return norm.device.type == "cpu" and bool(norm + 1e-6 <= limit)
