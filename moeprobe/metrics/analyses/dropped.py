"""Which choices exceed the capacity of their expert? Applies where tokens choose and capacity is limited.

A choice is lost at an expert that is full, whatever becomes of the token's other choices; a token that loses all of
them is one without an expert (``unserved``). With unlimited capacity, as routers whose tokens do not depend on one
another are probed unless told otherwise, nothing is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


DROPPED = Metric(
    "dropped",
    about="share of the choices of the view's tokens (or of both random views) that exceed their expert's capacity; "
    "where tokens choose",
    label="dropped choices",
)


class Dropped(LayerAnalysis):
    """Share of the choices that exceed their expert's capacity, where tokens choose.

    Expert 0 has a capacity of three tokens and is chosen by four, so one of five choices is dropped:

    >>> from moeprobe.metrics.analyses.dropped import Dropped
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(Dropped(), pair(route([[0, 0, 0, 0, 1]], processed=[[[True], [True], [True], [False], [True]]])))
    {'dropped': 0.2}
    """

    measures = (DROPPED,)
    signature = "choices"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose: experts that choose never exceed their capacity."""
        return layer.tokens_choose

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the choices per image, and how many of them are dropped, for patches."""
        import torch

        choices, lost = [], []
        for layer in pair.views:
            part = slice(layer.num_prefix_tokens, None)
            is_choice = (layer.selected[:, part] >= 0) & layer.valid[:, part, None]
            choices.append(is_choice.flatten(1).sum(1))
            lost.append((is_choice & ~layer.processed[:, part]).flatten(1).sum(1))
        columns = {"choices": torch.stack(choices).sum(0), "dropped": torch.stack(lost).sum(0)}
        return {pair.view.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [DROPPED.share_of(columns["dropped"], columns["choices"])]
