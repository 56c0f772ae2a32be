"""The gradient of a loss by the pixels, of whatever gives class scores."""

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
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        loss = F.cross_entropy(scores_of(pixels), targets.to(pixels.device), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient
