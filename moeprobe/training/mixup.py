"""V-MoE's mixup: one weight for the whole batch, the partner is the next image.

Source: V-MoE's released program (weights from a Dirichlet distribution, the larger one first).
"""

import numpy as np
import torch
from torch import Tensor


def mixup(
    images: Tensor, targets: Tensor, *, concentration: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Mix rows ``(B, ...)`` and their soft targets ``(B, classes)`` with the next row; the larger weight stays."""
    weight = float(rng.dirichlet([concentration, concentration]).max())
    images = weight * images + (1 - weight) * torch.roll(images, -1, 0)
    return images, weight * targets + (1 - weight) * torch.roll(targets, -1, 0)
