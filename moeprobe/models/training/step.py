"""The parts of a training step: from a batch to its losses, from a loss to gradients.

Axes: B rows of a batch.
"""

from collections.abc import Mapping

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from moeprobe.models.nn.capture import capture
from moeprobe.models.training.objectives.base import Objective, Term, Views
from moeprobe.models.training.room import room


def measure(
    model: VisionTransformer,
    batch: tuple[Tensor, Tensor, Tensor],
    views: Views,
    *,
    objective: Objective,
    loss: str,
    amp: bool,
    labeled: float | None = None,
) -> dict[str, Tensor]:
    """Return the ``loss`` of a batch (normalized images, labels, targets), and what else is reported of it.

    ``labeled`` is the share of images with labels, None = all. Of a part the supervised loss and the accuracy are those
    of the rows that have one (label from 0), 0 of a batch without any; all other terms are of all rows.
    """
    images, labels, targets = batch
    with torch.autocast(images.device.type, torch.bfloat16, enabled=amp), capture(model) as decisions:
        logits = model(images)
    scores = logits
    if labeled is not None:
        scores, labels, targets = (values[labels >= 0] for values in (logits, labels, targets))
    main = supervised_loss(scores.float(), targets, loss) if len(labels) else 0.0 * logits.float().sum()
    terms = objective.terms(decisions, views) if decisions else {}  # of a dense model nothing decides
    hits = (scores.argmax(1) == labels).float()
    accuracy = hits.mean() if len(labels) else hits.sum()
    values = {"loss": total_loss(main, terms), "main_loss": main, "accuracy": accuracy}
    return values | {name: term.value for name, term in terms.items()} | room(decisions)


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
    parameters = list(model.parameters())  # collected once: walking through the modules takes a while
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if clip_norm is not None and not _known_within(norm, clip_norm):
        nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    return norm


def _known_within(norm: Tensor, limit: float) -> bool:
    """Whether gradients need no clipping; False on an accelerator, where reading the norm would wait for it."""
    return norm.device.type == "cpu" and bool(norm + 1e-6 <= limit)
