"""The parts of a training step that are pure: from scores to a loss, from a loss to new parameters.

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


def backward(loss: Tensor, model: nn.Module, *, clip_norm: float | None) -> Tensor:
    """Leave fresh gradients of ``loss`` on the parameters, clipped to a global norm; return the norm they had."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    limit = float("inf") if clip_norm is None else clip_norm
    return nn.utils.clip_grad_norm_(model.parameters(), limit)
