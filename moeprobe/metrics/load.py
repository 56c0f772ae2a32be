"""How evenly are the experts used? Always to be read together with a match ratio: a collapsed router matches perfectly.

Where experts choose their tokens all are equally busy, whatever they choose: see ``unserved`` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.entropy import Entropy

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


LOAD_ENTROPY = Metric(
    "load_entropy",
    about="entropy of the experts' shares of the first choices, divided by log E: 1 = even, 0 = all to one expert",
    label="load entropy (1 = even)",
    short="load entropy",
    noun="load entropy",
    rank=21,
    headline=True,
    along="tokens choose",
    collapsed_at_zero=True,
)


class Load(LayerAnalysis):
    """Entropy of the first choices over the experts, divided by log E (1 = even, 0 = one expert)."""

    measures = (LOAD_ENTROPY,)
    signature = "load"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, there is more than one, and it is known which was chosen first."""
        return layer.tokens_choose and layer.num_experts > 1 and layer.ordered

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return how many patches of the view, or of both views, chose each expert first, ``(B, E)``."""
        import torch

        histograms = torch.stack([_histogram(layer) for layer in pair.views])
        return {pair.view.modality.token: {"load": histograms.sum(0)}}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the entropy of the pooled load."""
        histogram = columns["load"].astype(np.float64)
        return [LOAD_ENTROPY.raw(Entropy(histogram), columns["load"].sum(1))]


def _histogram(layer: LayerRouting) -> Tensor:
    import torch

    first = layer.selected[:, layer.num_prefix_tokens :, 0].long()
    present = layer.valid[:, layer.num_prefix_tokens :] & (first >= 0)
    histogram = torch.zeros(len(first), layer.num_experts, dtype=torch.int64, device=first.device)
    return histogram.scatter_add(1, first.clamp_min(0), present.long())
