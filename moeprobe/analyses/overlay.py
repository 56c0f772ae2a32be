"""Which expert does each patch choose, and which choices does a perturbation change? Figure 5 of the PRC paper.

An exhibit, not an aggregate: a few images, kept as pixels and choices, to be looked at.
"""

from dataclasses import dataclass
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
        changed: ``(rows, columns)`` of the perturbed image: another expert than the corresponding clean patch.
        compared: ``(rows, columns)`` of the perturbed image: there is a corresponding clean patch.
    """

    image_id: str
    checkpoint: str
    layer: str
    severity: float
    clean: NDArray[np.float32]
    perturbed: NDArray[np.float32]
    clean_expert: NDArray[np.int64]
    perturbed_expert: NDArray[np.int64]
    changed: NDArray[np.bool_]
    compared: NDArray[np.bool_]

    @property
    def changed_share(self) -> float:
        """Share of the compared patches that changed; NaN where none is compared."""
        return float(self.changed.sum() / self.compared.sum()) if self.compared.any() else float("nan")


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
    valid = reference >= 0
    compared = np.zeros(grid.num_patches, dtype=bool)
    changed = np.zeros(grid.num_patches, dtype=bool)
    compared[view[valid]] = True
    # Several clean patches may share one perturbed patch (a zoom): it changed if it differs from any of them.
    np.logical_or.at(changed, view[valid], clean[reference[valid]] != perturbed[view[valid]])
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
        changed=changed.reshape(shape),
        compared=compared.reshape(shape),
    )
