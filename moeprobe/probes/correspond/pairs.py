"""Which patches of two views show the same piece of the image? Figure 4 of the PRC paper.

An illustration of the geometry alone, without a model: a few images, kept as pixels and pairs of patches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs import geometry
from moeprobe.inputs.images import Sample


@dataclass(frozen=True)
class PairedPatches:
    """The pairs of patches of two views of one image; view 1 is the one that covers less of the source.

    Attributes:
        image_id: name of the image.
        names: what view 1 and view 2 are, e.g. ("second crop", "first crop").
        pixels: ``(S, S, 3)`` of view 1 and of view 2, in [0, 1].
        grid: the P patches of either view.
        partner: ``(P,)`` for each patch of view 1 the patch of view 2 that holds the point, -1 = none.
        experts: ``(P,)`` of view 1 and of view 2 the expert that each patch chooses, -1 = none; None without a model.
        experts_of: which layer of which model they are of.
        points: ``(P, 2)`` position of the center of each patch of view 1 in view 2: x and y in pixels, perhaps outside;
            not-a-number where that is not known.
    """

    image_id: str
    names: tuple[str, str]
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]]
    grid: geometry.PatchGrid
    partner: NDArray[np.int64]
    points: NDArray[np.float64]
    experts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    experts_of: str = ""

    @property
    def same_expert(self) -> NDArray[np.bool_] | None:
        """Whether each patch of view 1 and its partner choose the same expert; False without a partner."""
        if self.experts is None:
            return None
        return (self.partner >= 0) & (self.experts[0] == self.experts[1][self.partner])

    @property
    def matched(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which patches of view 1 have a partner, and which of view 2 are one, ``(P,)`` each."""
        second = np.zeros(self.grid.num_patches, dtype=bool)
        second[self.partner[self.partner >= 0]] = True
        return self.partner >= 0, second


def pair_up(
    *,
    image_id: str,
    names: tuple[str, str],
    views: tuple[Sample, Sample],
    source_size: tuple[int, int],
    grid: geometry.PatchGrid,
    experts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    experts_of: str = "",
) -> PairedPatches:
    """Return the pairs of a reference and a view; the one that covers less of the source first.

    ``experts`` belong to their patches ``(P,)``, where a model is at hand, in the layer that ``experts_of`` names.
    """
    if views[1].displacement is not None:
        displacement = views[1].displacement[None]
        pairs, order = geometry.correspond_displaced(displacement, grid=grid), (0, 1)
        points = geometry.displaced_centers(displacement, grid)[0]
    else:
        maps = [view.to_source[None] for view in views]
        pairs = geometry.correspond(*maps, grid=grid, source_size=np.array([source_size], dtype=float))
        order = (1, 0) if pairs.view_first[0] else (0, 1)
        first, second = (views[side].to_source for side in order)
        points = geometry.apply(geometry.inverse(second) @ first, grid.centers())
    pixels = [views[side].pixels.numpy().transpose(1, 2, 0) for side in order]
    return PairedPatches(
        image_id=image_id,
        names=(names[order[0]], names[order[1]]),
        pixels=(pixels[0], pixels[1]),
        grid=grid,
        partner=(pairs.reference if pairs.view_first[0] else pairs.view)[0],
        points=points,
        experts=None if experts is None else (experts[order[0]], experts[order[1]]),
        experts_of=experts_of,
    )
