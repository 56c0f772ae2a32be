"""Which tokens of a layer are flipped, and which sets are forced on them.

What is drawn belongs to (seed, layer, image), so it is the same for every checkpoint and any batch.

Axes: B images, T tokens, E experts, K choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moeprobe.metrics.analyses.selection import runner_up
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.seeds import generator


@dataclass(frozen=True)
class ForcedSets:
    """Sets to be forced on tokens of a layer, one token at a time.

    Attributes:
        selected: ``(B, T, K)`` the other set of each token.
        weight: ``(B, T)`` float64, tokens of the image that a sampled token stands for; 0 = not sampled.
    """

    selected: Tensor
    weight: Tensor


def forced_sets(
    layer: LayerRouting,
    perturbed: LayerRouting,
    image_ids: Sequence[str],
    *,
    name: str,
    patches: int,
    seed: int,
) -> dict[str, ForcedSets]:
    """Return the sets that are forced on tokens of a layer, by kind of set.

    Args:
        layer: the clean routing.
        perturbed: the routing of the perturbed images.
        image_ids: names of the images.
        name: of the layer.
        patches: sampled patches of an image, for each kind of set; all prefix tokens are taken.
        seed: of the run.
    """
    num_tokens, num_experts = layer.gates.shape[1:]
    draws = np.stack(
        [
            generator(seed, f"flips {name}", image_id).random((num_tokens, 1 + num_experts))
            for image_id in image_ids
        ]
    )
    keys = torch.from_numpy(draws).to(layer.gates.device)
    is_full = layer.valid & (layer.selected >= 0).all(-1)
    sets = {"runner_up": _with_runner_up(layer, -1)}
    if layer.top_k > 1:
        sets["first"] = _with_runner_up(layer, 0)
    sets["random"] = _at_random(layer, keys[..., 1:])
    sets["view"] = perturbed.selected
    flipped = {
        "view": ~layer.selects_the_same(perturbed) & (perturbed.selected >= 0).all(-1) & perturbed.valid,
    }
    return {
        forced: ForcedSets(
            selected,
            _sampled(is_full & flipped.get(forced, is_full), keys[..., 0], layer.num_prefix_tokens, patches),
        )
        for forced, selected in sets.items()
    }


def _with_runner_up(layer: LayerRouting, position: int) -> Tensor:
    """Return the sets with the best expert that was not chosen in place of the one at ``position``."""
    selected = layer.selected.clone()
    selected[..., position] = runner_up(layer)
    return selected


def _at_random(layer: LayerRouting, keys: Tensor) -> Tensor:
    """Return sets of the experts with the highest keys ``(B, T, E)``; a draw of the clean set swaps one expert."""
    order = keys.argsort(-1, descending=True)
    selected = order[..., : layer.top_k].clone()
    marks = torch.zeros_like(layer.selected_mask).scatter(-1, selected, True)
    is_same = (marks == layer.selected_mask).all(-1)
    selected[..., -1] = torch.where(is_same, order[..., layer.top_k], selected[..., -1])
    return selected.to(layer.selected.dtype)


def _sampled(eligible: Tensor, keys: Tensor, prefix: int, patches: int) -> Tensor:
    """Return the weights ``(B, T)`` of all eligible prefix tokens, and of so many eligible patches as are sampled."""
    weight = eligible.double()
    of_patches = eligible[:, prefix:]
    rank = keys[:, prefix:].masked_fill(~of_patches, torch.inf).argsort(-1).argsort(-1)
    sampled = of_patches & (rank < patches)
    stands_for = of_patches.sum(-1, keepdim=True) / sampled.sum(-1, keepdim=True).clamp_min(1)
    weight[:, prefix:] = sampled * stands_for
    return weight
