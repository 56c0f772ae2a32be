"""Gradients by the pixels, of whatever gives class scores or routing."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def loss_gradient(scores_of: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient ``(B, 3, H, W)`` of the cross-entropy of each image, by its own pixels.

    Args:
        scores_of: gives the class scores ``(B, classes)`` of images.
        images: ``(B, 3, H, W)``.
        targets: ``(B,)`` classes.
    """

    def losses(pixels: Tensor) -> Tensor:
        return F.cross_entropy(scores_of(pixels), targets.to(pixels.device), reduction="none")

    return gradient_of(losses, images)


def gradient_of(values_of: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the gradient ``(B, 3, H, W)`` of a value of each image ``(B,)``, by its own pixels ``(B, 3, H, W)``."""
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(values_of(pixels).sum(), pixels)
    return gradient
