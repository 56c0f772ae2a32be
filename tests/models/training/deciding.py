"""Routers' decisions and pairs of views for the tests of objectives."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.training.objectives.base import BatchViews

GRID = PatchGrid(3, 3, 8)
FRAME = 24


def random_views(num_images: int = 4, *, seed: int = 0, prefix: int = 1, apart: bool = False) -> BatchViews:
    """Crops of sources of different sizes, some mirrored; the second is the smaller one in every other image.

    With ``apart`` the two crops share nothing.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(40, 90, size=(num_images, 2))
    maps: list[list[np.ndarray]] = [[], []]
    for image, (width, height) in enumerate(sizes):
        for view in range(2):
            share = (0.5 if view == image % 2 else 0.8) * rng.uniform(0.9, 1.1)
            w, h = share * width, share * height
            left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
            if apart:
                w, h, left, top = width / 3, height / 3, view * width / 2, 0.0
            maps[view].append(geometry.crop(left, top, w, h, FRAME, flip=bool(rng.random() < 0.5)))
    return BatchViews([np.stack(one) for one in maps], sizes, GRID, prefix)


@dataclass
class Routed:
    """A router's decision and what it was made of."""

    decision: Decision
    tokens: Tensor
    kernel: Tensor
    noise: Tensor | None

    def gates(self, rows: int) -> np.ndarray:
        """The clean gates ``(rows, T, E)`` in float64, computed anew."""
        logits = self.tokens.detach().double().numpy() @ self.kernel.detach().double().numpy().T
        exponential = np.exp(logits - logits.max(-1, keepdims=True))
        gates: np.ndarray = exponential / exponential.sum(-1, keepdims=True)
        return gates.reshape(rows, -1, gates.shape[-1])


def route(
    views: BatchViews,
    *,
    num_groups: int = 2,
    num_experts: int = 4,
    noisy: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Routed:
    """Route random tokens of a batch of pairs, in groups."""
    rows = 2 * len(views.source_size)
    length = views.grid.num_patches + views.num_prefix_tokens
    made = torch.Generator().manual_seed(seed)
    tokens = torch.randn(rows, length, 6, generator=made, dtype=dtype).requires_grad_()
    router = SoftmaxTokenChoice(6, num_experts, 2).to(dtype)
    with torch.no_grad():
        router.gate.weight.copy_(torch.randn(num_experts, 6, generator=made, dtype=dtype))
    groups = tokens.reshape(num_groups, -1, 6)
    noise = None
    if noisy:
        noise = torch.randn(*groups.shape[:2], num_experts, generator=made, dtype=dtype)
    return Routed(router(groups, noise), tokens, router.gate.weight, noise)
