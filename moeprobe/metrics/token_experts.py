"""Which experts a token has, as one of several experts of a token counts everywhere: as a share of the token.

Where tokens choose it is the first choice; where experts choose, each expert that processes a token has an equal share
of it; where every expert gets a share of every token, the token's weights, divided by their sum.

Axes: B images, J tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.entries import Entries, of_choices, of_weights
from moeprobe.metrics.token_kinds import EXPERTS, Paired, double

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.base import Columns
    from moeprobe.routing.record import LayerPair, LayerRouting

# Levels of red, green and blue of a patch's mean color: so many bins to the third power.
LEVELS = 4
# What a column of experts is called: one of each token, or shares of several.
CHOICE, SHARES = "expert", "expert_shares"


def knows_experts(layer: LayerRouting) -> bool:
    """Whether there are several experts, and it is known which of them a token has."""
    return layer.num_experts > 1 and (layer.ordered or not layer.tokens_choose)


def experts(layer: LayerRouting, paired: Paired, *, name: str) -> dict[str, Tensor]:
    """Return columns, whose names begin with ``name``, with the experts of some tokens of each image, and with E.

    ``(B, J)`` int16 where tokens choose, -1 = none; else ``(B, J · E)`` float64.
    """
    import torch

    number = torch.full((len(paired.present),), layer.num_experts, dtype=torch.int64)
    if layer.tokens_choose:
        first = paired.of_view(layer.selected[..., 0])
        return {f"{name}_{CHOICE}": first.masked_fill(~paired.present, -1), EXPERTS: number}
    weights = layer.processed_mask if layer.experts_choose else layer.weights
    weights = double(paired.of_view(weights).masked_fill(~paired.present[..., None], 0))
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return {f"{name}_{SHARES}": shares.flatten(1), EXPERTS: number}


def entries(columns: Columns, *, name: str) -> tuple[Entries, int]:
    """Return what ``experts`` put into columns, and E."""
    number = int(columns[EXPERTS].max(initial=1))
    if f"{name}_{CHOICE}" in columns:
        return of_choices(columns[f"{name}_{CHOICE}"]), number
    shares = columns[f"{name}_{SHARES}"]
    return of_weights(shares.reshape(len(shares), -1, number)), number


def num_tokens(columns: Columns, *, name: str) -> int:
    """Return J."""
    if f"{name}_{CHOICE}" in columns:
        return columns[f"{name}_{CHOICE}"].shape[1]
    return columns[f"{name}_{SHARES}"].shape[1] // int(columns[EXPERTS].max(initial=1))


def color_bins(pair: LayerPair) -> Tensor | None:
    """Return the bin ``(B, P)`` int16 of each patch's mean color, from 0 to ``LEVELS``³ − 1; None without pixels."""
    import torch

    grid = pair.view.grid
    if pair.pixels is None or grid is None:
        return None
    side = grid.patch_size
    cut = pair.pixels[:, :, : grid.rows * side, : grid.columns * side]
    means = cut.unflatten(3, (grid.columns, side)).unflatten(2, (grid.rows, side)).mean((3, 5)).flatten(2)
    # A mean on the border between two levels is not to go by its rounding.
    levels = (means * LEVELS + 1e-4).floor().clamp(0, LEVELS - 1)
    factors = torch.tensor([LEVELS**2, LEVELS, 1], dtype=levels.dtype, device=levels.device)
    return (levels * factors[:, None]).sum(1).to(torch.int16)


def color_bin(red: int, green: int, blue: int) -> int:
    """Return the bin of a color of 8 bits a channel.

    Pure red, at the highest of 4 levels: 3 · 4² + 0 · 4 + 0:

    >>> from moeprobe.metrics.token_experts import color_bin
    >>> color_bin(255, 0, 0)
    48
    """
    red_level, green_level, blue_level = (
        min(LEVELS * level // 256, LEVELS - 1) for level in (red, green, blue)
    )
    return (red_level * LEVELS + green_level) * LEVELS + blue_level


def of_classes(labels: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the classes of images as codes of the single token of each ``(n, 1)``; -1 = without a label."""
    return labels.astype(np.int64).clip(min=-1)[:, None]
