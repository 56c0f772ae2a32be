"""The parts of a training step: losses put together, and from gradients to clipped ones.

Axes: B rows of a batch.
"""

from collections.abc import Mapping

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


def clip(model: nn.Module, *, norm: float | None) -> Tensor:
    """Clip the gradients on the parameters to a global norm, None = none; return the norm that they had."""
    parameters = list(model.parameters())  # collected once: walking through the modules takes a while
    found = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if norm is not None and not _known_within(found, norm):
        nn.utils.clip_grads_with_norm_(parameters, norm, found)
    return found


def _known_within(norm: Tensor, limit: float) -> bool:
    """Whether gradients need no clipping; False on an accelerator, where reading the norm would wait for it."""
    return norm.device.type == "cpu" and bool(norm + 1e-6 <= limit)
