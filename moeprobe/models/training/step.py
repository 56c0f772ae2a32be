"""The parts of a training step: losses put together, and from gradients to clipped ones.

Axes: B rows of a batch.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from moeprobe.models.training.objectives.base import Term


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
    return nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])


def clip(
    model: nn.Module, *, norm: float | None, measure: Callable[[nn.Module], Tensor] = gradient_norm
) -> Tensor:
    """Clip the gradients on the parameters to a global norm, None = none; return the norm that they had."""
    found = measure(model)
    if norm is not None and not _known_within(found, norm):
        # Collected once: walking through the modules takes a while.
        nn.utils.clip_grads_with_norm_(list(model.parameters()), norm, found)
    return found


def _known_within(norm: Tensor, limit: float) -> bool:
    """Whether gradients need no clipping; False on an accelerator, where reading the norm would wait for it."""
    return norm.device.type == "cpu" and bool(norm + 1e-6 <= limit)
