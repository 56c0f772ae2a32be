"""Which tokens of a reference and a view show the same thing: patches by geometry, tokens of texts by alignment.

Axes: B images or texts, P patches, J pairs of tokens.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moeprobe.inputs import regions
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.routing import finite
from moeprobe.routing.record import LayerPair, LayerRouting


def pair_up(
    batch: Batch | TextBatch,
    reference: LayerRouting,
    view: LayerRouting,
    view_index: int,
    *,
    aligned: bool,
    symmetric: bool,
) -> LayerPair:
    """Return one layer's routing of view 0 and view ``view_index`` of a batch, with the tokens that correspond.

    Args:
        batch: with the geometry of its views, or the spans of its tokens.
        reference: routing of view 0.
        view: routing of the other view.
        view_index: the number of that view.
        aligned: whether its patches never move; in view 0 itself they do not.
        symmetric: whether neither of the two is the clean one.
    """
    aligned = aligned or view_index == 0
    if isinstance(batch, TextBatch):
        pair = _texts(batch, reference, view, view_index, aligned=aligned)
    else:
        pair = _images(batch, reference, view, view_index, aligned=aligned)
    return dataclasses.replace(pair, symmetric=symmetric)


def settle(
    pair: LayerPair, image_ids: Sequence[str], *, checkpoint: str, layer: str, allow: bool
) -> tuple[LayerPair, dict[str, Tensor]]:
    """Return a pair as it is measured, and a column for its sums if images may be left out.

    Raises:
        UserError: gates of an image are not finite, and ``allow`` is off.
    """
    bad = finite.gates_are_not(pair.reference) | finite.gates_are_not(pair.view)
    if not allow:
        finite.refuse(bad, image_ids, checkpoint=checkpoint, layer=layer, modality=pair.view.modality)
        return pair, {}
    return _without(pair, bad), {finite.COLUMN: bad.long()}


def _without(pair: LayerPair, bad: Tensor) -> LayerPair:
    """Return a pair in which the bad images ``(B,)`` have nothing but padding, so that they are no trials."""
    sides = [
        dataclasses.replace(layer, valid=layer.valid & ~bad[:, None]) for layer in (pair.reference, pair.view)
    ]
    return dataclasses.replace(pair, reference=sides[0], view=sides[1])


def _texts(
    batch: TextBatch, reference: LayerRouting, view: LayerRouting, view_index: int, *, aligned: bool
) -> LayerPair:
    reference_tokens, view_tokens = (
        (batch.aligned_tokens(), batch.aligned_tokens()) if aligned else batch.partners(view_index)
    )
    first, second = (torch.from_numpy(side).to(view.gates.device) for side in (reference_tokens, view_tokens))
    ids = batch.views[0].ids.to(view.gates.device)
    return LayerPair(reference, view, first, second, aligned=aligned, token_ids=ids)


def _images(
    batch: Batch, reference: LayerRouting, view: LayerRouting, view_index: int, *, aligned: bool
) -> LayerPair:
    assert view.grid is not None
    device = view.gates.device
    shows = (
        None
        if batch.foreground is None
        else [regions.regions(batch.foreground[v], view.grid) for v in (0, view_index)]
    )
    if aligned:
        region = None if shows is None else torch.from_numpy(shows[0]).to(device)
        patches = torch.arange(view.grid.num_patches, device=device).expand(len(batch.image_ids), -1)
        return LayerPair(
            reference, view, patches, patches, aligned=True, region=region, pixels=batch.views[view_index]
        )
    pairs = batch.correspond(view_index, view.grid)
    reference_patch, view_patch = (
        torch.from_numpy(side).to(device) for side in (pairs.reference, pairs.view)
    )
    region = None
    if shows is not None:
        # A slot is a patch of view 1: the one whose center was mapped.
        slot = np.where(pairs.view_first[:, None], pairs.view, pairs.reference).clip(0)
        region_of_patch = np.where(pairs.view_first[:, None], shows[1], shows[0])
        region = torch.from_numpy(np.take_along_axis(region_of_patch, slot, axis=1)).to(device)
    return LayerPair(
        reference,
        view,
        reference_patch,
        view_patch,
        aligned=False,
        view_first=torch.from_numpy(pairs.view_first).to(device),
        region=region,
        pixels=batch.views[view_index],
    )
