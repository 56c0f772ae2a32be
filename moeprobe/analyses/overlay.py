"""Which expert does each patch choose, and which choices does a perturbation change? Figure 5 of the PRC paper.

An exhibit, not an aggregate: a few images, kept as pixels and choices, to be looked at.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.geometry import Correspondence

if TYPE_CHECKING:  # figures import this file, and must not import torch
    from moeprobe.routing import LayerRouting


@dataclass(frozen=True)
class Overlay:
    """First choices of one layer on a clean and a perturbed image, patch by patch.

    Attributes:
        image_id: name of the image.
        checkpoint: whose routing it is.
        layer: MoE layer.
        severity: how strong the perturbation is, in the view's unit.
        clean: ``(S, S, 3)`` pixels in [0, 1].
        perturbed: ``(S, S, 3)``.
        clean_expert: ``(rows, columns)`` first choice.
        perturbed_expert: ``(rows, columns)``.
        clean_patch: ``(rows, columns)`` of the perturbed image: the corresponding clean patch, numbered row by row from
            0; -1 = none. Of several that meet in one perturbed patch, the first.
        meeting: corresponding clean patches that are not shown, since another one is in the same perturbed patch.
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

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Which patches of the perturbed image have a corresponding clean one."""
        return self.clean_patch >= 0

    @cached_property
    def clean_patch_expert(self) -> NDArray[np.int64]:
        """First choice of the corresponding clean patch; -1 where there is none."""
        return np.where(self.compared, self.clean_expert.ravel()[self.clean_patch], -1)

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """Which patches of the perturbed image choose another expert than the corresponding clean one."""
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
) -> Overlay:
    """Return the overlay of image ``position`` of a batch from its clean and perturbed ``pixels`` and ``routing``."""
    grid = routing[0].grid
    assert grid is not None
    prefix = routing[0].num_prefix_tokens
    clean, perturbed = (
        side.selected[position, prefix:, 0].cpu().numpy().astype(np.int64) for side in routing
    )
    reference, view = pairs.reference[position], pairs.view[position]
    paired = np.flatnonzero(reference >= 0)
    clean_patch = np.full(grid.num_patches, -1)
    # Several clean patches may share one perturbed patch (a zoom): written last, the first of them stays.
    last_first = paired[np.argsort(-reference[paired])]
    clean_patch[view[last_first]] = reference[last_first]
    shape = (grid.rows, grid.columns)
    return Overlay(
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
    )
