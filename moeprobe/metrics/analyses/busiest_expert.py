"""How many of an image's patches does its busiest expert have? Applies where tokens choose.

``load`` and ``balance`` add up the choices of all images first, where loads that are uneven in each image may even
out. An expert with places for a part of an image's patches is overfull by the patches of a single image.

Axes: B images, T tokens, E experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.analyses.selection import choices_by_expert
from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

BUSIEST_EXPERT = Metric(
    "busiest_expert",
    about="share of an image's patches that its busiest expert has, on average: K / E where the load is even, 1 = one "
    "expert has them all",
    label="patches of the busiest expert",
    unit="share",
)


class BusiestExpert(LayerAnalysis):
    """Share of an image's patches that have its busiest expert, by all K choices, before capacity.

    The busiest expert has four of five patches of the first image, and three of the second, 7 of 10:

    >>> from moeprobe.metrics.analyses.busiest_expert import BusiestExpert
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(BusiestExpert(), pair(route([[0, 0, 0, 0, 1], [1, 1, 1, 0, 0]])))
    {'busiest_expert': 0.7}
    """

    measures = (BUSIEST_EXPERT,)
    signature = "busiest_expert_patches"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and not all of them."""
        return layer.tokens_choose and layer.top_k < layer.num_experts

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return, of the view, the patches of the busiest expert ``(B,)``, and how many there are."""
        layer = pair.view
        prefix = layer.num_prefix_tokens
        largest = choices_by_expert(layer, first=prefix).amax(-1)
        columns = {"busiest_expert_most": largest, self.signature: layer.valid[:, prefix:].sum(1)}
        return {layer.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [BUSIEST_EXPERT.share_of(columns["busiest_expert_most"], columns[self.signature])]
