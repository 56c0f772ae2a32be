"""Corresponding tokens of a reference and a view, with what the router decided for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.routing.record import LayerRouting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LayerPair:
    """One layer's routing of a reference and a view, and which of their patches show the same thing.

    ``reference_patch[b, j]`` and ``view_patch[b, j]`` ``(B, P)`` are the patches of pair j, both -1 where there is
    no partner. ``aligned``: pair j is patch j on both sides, for every image. ``view_first`` ``(B,)`` bool: the view
    is view 1 of the paper, the one that covers less of the source; None = it is the reference for every image, as it
    is where both cover the same. ``region`` ``(B, P)``: what view 1's patch of pair j shows, as a number of
    ``regions.REGIONS``; None where the images have no masks. ``symmetric``: both are random views of the images, so
    that statements on views hold for either. ``pixels`` ``(B, 3, S, S)`` are the view's, in [0, 1]; None where it
    is no image, or only its routing is known. ``generated`` ``(B, P)``: 1 where the token of pair j was generated, 0
    where it is one of the prompt, -1 where that is not known; None = of no token.
    ``token_ids`` ``(B, T)``: the reference's tokens in the vocabulary, -1 = not known; None = of no token.
    """

    reference: LayerRouting
    view: LayerRouting
    reference_patch: Tensor
    view_patch: Tensor
    aligned: bool
    view_first: Tensor | None = None
    region: Tensor | None = None
    symmetric: bool = False
    pixels: Tensor | None = None
    generated: Tensor | None = None
    token_ids: Tensor | None = None

    @property
    def views(self) -> tuple[LayerRouting, ...]:
        """The sides that are views: both of two random ones, but no clean reference."""
        return (self.reference, self.view) if self.symmetric else (self.view,)
