"""Which expert does each patch choose, and which choices does a perturbation change? Figure 5 of the PRC paper.

An illustration, not an aggregate: a few images, kept as pixels and choices.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.geometry import Correspondence

if TYPE_CHECKING:  # figures import this file, and must not import torch
    from moeprobe.routing.record import LayerRouting


@dataclass(frozen=True)
class PatchChoices:
    """The router's choice for each patch of one image, row by row.

    Attributes:
        experts: ``(patches, K)`` best first, before capacity; -1 = none.
        gates: ``(patches, K)`` weights of these experts.
        margins: ``(patches,)`` how far the set is from changing, in the scores that it is read off; NaN = unknown.
    """

    experts: NDArray[np.int64]
    gates: NDArray[np.float64]
    margins: NDArray[np.float64]

    def describe(self, patch: int) -> tuple[str, str, float]:
        """Return experts and their gates as texts, and the margin of a patch; empty where there are none."""
        present = self.experts[patch] >= 0
        experts = " ".join(str(expert) for expert in self.experts[patch][present])
        gates = " ".join(f"{gate:.3f}" for gate in self.gates[patch][present])
        return experts, gates, float(self.margins[patch])


@dataclass(frozen=True)
class ImageOverlay:
    """The expert of each patch in one layer, on a clean and a perturbed image.

    Where tokens choose it is the first choice; where experts choose, the one that scores the patch best of those that
    take it, -1 = none does; where every expert has a share of every token, the one of the largest weight.

    Attributes:
        image_id: name of the image.
        checkpoint: whose routing it is.
        layer: MoE layer.
        severity: how strong the perturbation is, in the view's unit.
        clean: ``(S, S, 3)`` pixels in [0, 1].
        perturbed: ``(S, S, 3)``.
        clean_expert: ``(rows, columns)``.
        perturbed_expert: ``(rows, columns)``.
        clean_patch: ``(rows, columns)`` of the perturbed image: the corresponding clean patch, numbered row by row from
            0; -1 = none. Of several that meet in one perturbed patch, the first.
        meeting: corresponding clean patches that are not shown, since another one is in the same perturbed patch.
        shows: which expert it is, in words.
        clean_choices: sets, gates and margins of the clean image; None = unknown.
        perturbed_choices: the same of the perturbed image.
    """

    image_id: str
    checkpoint: str
    layer: str
    severity: float
    clean: NDArray[np.float32]
    perturbed: NDArray[np.float32]
    clean_expert: NDArray[np.int64]
    perturbed_expert: NDArray[np.int64]
    clean_patch: NDArray[np.int64]
    meeting: int
    shows: str = "expert of the patch"
    clean_choices: PatchChoices | None = None
    perturbed_choices: PatchChoices | None = None

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Which patches of the perturbed image have a corresponding clean one, and an expert on at least one side."""
        return (self.clean_patch >= 0) & ((self.clean_patch_expert >= 0) | (self.perturbed_expert >= 0))

    @cached_property
    def clean_patch_expert(self) -> NDArray[np.int64]:
        """Expert of the corresponding clean patch; -1 where there is no such patch, or no expert took it."""
        return np.where(self.clean_patch >= 0, self.clean_expert.ravel()[self.clean_patch], -1)

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """Which patches of the perturbed image have another expert than the corresponding clean one."""
        return self.compared & (self.clean_patch_expert != self.perturbed_expert)


def overlay(
    *,
    image_id: str,
    checkpoint: str,
    layer: str,
    severity: float,
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]],
    routing: "tuple[LayerRouting, LayerRouting]",
    pairs: Correspondence,
    position: int,
) -> ImageOverlay:
    """Return the overlay of image ``position`` of a batch from its clean and perturbed ``pixels`` and ``routing``."""
    grid = routing[0].grid
    assert grid is not None
    prefix = routing[0].num_prefix_tokens
    clean, perturbed = (shown_experts(side, position)[prefix:] for side in routing)
    reference, view = pairs.reference[position], pairs.view[position]
    paired = np.flatnonzero(reference >= 0)
    clean_patch = np.full(grid.num_patches, -1)
    # Several clean patches may share one perturbed patch (a zoom): written last, the first of them stays.
    last_first = paired[np.argsort(-reference[paired])]
    clean_patch[view[last_first]] = reference[last_first]
    shape = (grid.rows, grid.columns)
    return ImageOverlay(
        image_id=image_id,
        checkpoint=checkpoint,
        layer=layer,
        severity=severity,
        clean=pixels[0].transpose(1, 2, 0),
        perturbed=pixels[1].transpose(1, 2, 0),
        clean_expert=clean.reshape(shape),
        perturbed_expert=perturbed.reshape(shape),
        clean_patch=clean_patch.reshape(shape),
        meeting=int(len(paired) - (clean_patch >= 0).sum()),
        shows=_shows(routing[1]),
        clean_choices=_choices(routing[0], position),
        perturbed_choices=_choices(routing[1], position),
    )


def _choices(layer: "LayerRouting", position: int) -> PatchChoices:
    """Return what the router chose for the patches of an image."""
    from moeprobe.metrics.analyses.confidence import selection_margins

    patches = slice(layer.num_prefix_tokens, None)
    selected = layer.selected[position, patches].long()
    gates = layer.gates[position, patches].gather(-1, selected.clamp_min(0))
    margins = selection_margins(layer, patches)
    return PatchChoices(
        experts=selected.cpu().numpy(),
        gates=gates.double().cpu().numpy(),
        margins=np.full(len(selected), np.nan) if margins is None else margins[position].cpu().numpy(),
    )


def shown_experts(layer: "LayerRouting", position: int) -> NDArray[np.int64]:
    """Return the expert ``(T,)`` that is drawn for each token of an image."""
    experts = layer.gates.argmax(-1) if layer.top_k == 0 else layer.selected[..., 0]
    return experts[position].cpu().numpy().astype(np.int64)


def _shows(layer: "LayerRouting") -> str:
    """Return which expert is drawn, in words."""
    if layer.top_k == 0:
        return "expert of the largest weight (all have a share of every patch)"
    if layer.experts_choose:
        return "of the experts that take the patch, the one that scores it best (gray, –: none takes it)"
    return ImageOverlay.shows
