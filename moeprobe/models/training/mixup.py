"""V-MoE's mixup: one weight for the whole batch, the partner is the next image.

Axes: B rows, V views of each image (rows are image 0 view 1, image 0 view 2, image 1 view 1, ...).

Source: V-MoE's released program (weights from a Dirichlet distribution, the larger one first; one weight per device).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def mixup(
    images: Tensor,
    targets: Tensor,
    *,
    concentration: float,
    rng: np.random.Generator,
    num_views: int = 1,
    following: Callable[[Tensor], Tensor] = lambda first: first,
) -> tuple[Tensor, Tensor]:
    """Mix rows ``(B, ...)`` and their soft targets ``(B, classes)`` with the next image's; the larger weight stays.

    With several views of an image the partner is the same view of the next image, never another view of the same.
    ``following`` returns, for the first rows of this part of a batch, the first rows of the next part; of a whole
    batch its own.
    """
    weight = float(rng.dirichlet([concentration, concentration]).max())

    def mix_rows(rows: Tensor) -> Tensor:
        partners = torch.cat([rows[num_views:], following(rows[:num_views])])
        return weight * rows + (1 - weight) * partners

    return mix_rows(images), mix_rows(targets)
