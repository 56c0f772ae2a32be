"""How full are the experts' buffers?

Applies where tokens choose and capacity is limited: empty places are computed too.

Prefix tokens take places as patches do, so it is about all tokens of an image; a table says it of patches alone, to be
read beside the dropped choices (``dropped``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Ratio

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


BUFFER_FILL = Metric(
    "buffer_fill",
    about="share of the experts' places that tokens of the view (or of both random views) take, prefix tokens too; "
    "where tokens choose and capacity is limited",
    label="places taken",
)


class BufferFill(LayerAnalysis):
    """Share of the experts' places that are taken, where tokens choose and capacity is limited.

    Two experts have three places each. Four of five tokens choose expert 0, where three find a place, so that
    tokens take 3 + 1 of 6 places:

    >>> from moeprobe.metrics.analyses.buffer_fill import BufferFill
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> fits = [[[True], [True], [True], [False], [True]]]
    >>> numbers(BufferFill(), pair(route([[0, 0, 0, 0, 1]], processed=fits, places=[6.0])))
    {'buffer_fill': 0.667}
    """

    measures = (BUFFER_FILL,)
    signature = "places"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose and there is a limit: experts that choose fill all places."""
        return layer.tokens_choose and layer.places is not None

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the places per image (of a group of several, its share of them), and the choices that take one."""
        import torch

        capacities, loads = [], []
        for layer in pair.views:
            assert layer.places is not None
            # An image that is left out has no valid token; its capacity must not count either.
            present = layer.valid.any(1)
            capacities.append(layer.places.where(present, 0))
            loads.append((layer.processed & (layer.selected >= 0)).flatten(1).sum(1).where(present, 0))
        columns = {"places": torch.stack(capacities).sum(0), "places_taken": torch.stack(loads).sum(0)}
        return {pair.view.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        capacity = columns["places"].astype(np.float64)
        trials = capacity.round().astype(np.int64)
        return [BUFFER_FILL.raw(Ratio(columns["places_taken"].astype(np.float64), capacity), trials)]
