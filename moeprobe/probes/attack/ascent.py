"""Images that are perturbed as far as epsilon allows: up the loss, or at random."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moeprobe.routing.capabilities import Differentiable
from moeprobe.runtime.seeds import generator


def ascended(model: Differentiable, images: Tensor, targets: Tensor, *, epsilon: float, steps: int) -> Tensor:
    """Return images after projected gradient ascent on the cross-entropy of ``targets`` (Madry et al. 2018).

    It begins at the image itself, so that the same call gives the same images.

    Args:
        model: whose loss.
        images: ``(B, 3, H, W)`` in [0, 1].
        targets: ``(B,)`` classes.
        epsilon: the largest change of a value, in units of the range [0, 1].
        steps: of 2.5 epsilon / steps along the signs of the gradient.
    """
    found = images
    for _ in range(steps):
        found = found + 2.5 * epsilon / steps * model.loss_gradient(found, targets).sign()
        found = _near(found, images, epsilon)
    return found


def at_random(images: Tensor, image_ids: Sequence[str], *, epsilon: float, seed: int) -> Tensor:
    """Return images ``(B, 3, H, W)`` whose values are moved by epsilon, up or down as (seed, image) says."""
    shape = images.shape[1:]
    signs = [generator(seed, "attack", name).integers(0, 2, shape, dtype=np.int8) for name in image_ids]
    moved = torch.from_numpy(np.stack(signs)).to(images) * 2 - 1
    return _near(images + epsilon * moved, images, epsilon)


def _near(found: Tensor, images: Tensor, epsilon: float) -> Tensor:
    """Return images that are images, and no further than epsilon from their own."""
    return torch.clamp(found, images - epsilon, images + epsilon).clamp(0, 1)
