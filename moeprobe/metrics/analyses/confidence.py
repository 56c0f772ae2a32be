"""How confident is the router? Table 5 of the PRC paper.

Mean highest gate, mean second, mean sum of the rest, the margin between first and second, and the entropy of the gates,
over all tokens. Which tokens the paper averages is not published: here the patches, with prefix tokens apart. It gives
no entropies, but says that routers trained for consistency by divergence (``jsd``) have a slightly higher one than
routers trained with PRC (III-B).

The margin between the first two gates says when the first choice changes; ``selection`` says when the set does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.token_kinds import slices

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


GATE_HIGHEST = Metric(
    "gate_highest",
    about="the highest gate of a token, on average",
    label="highest gate",
    unit="gate",
    rank=20,
    headline=True,
    along="any",
)
GATE_SECOND = Metric(
    "gate_second", about="the second gate of a token, on average", label="second gate", unit="gate"
)
GATE_REST = Metric(
    "gate_rest",
    about="the sum of all gates of a token but the first two, on average",
    label="sum of the rest",
    unit="gate",
)
GATE_MARGIN = Metric(
    "gate_margin",
    about="the highest gate of a token less the second, on average",
    label="first − second",
    unit="gate",
)
GATE_ENTROPY = Metric(
    "gate_entropy",
    about="the entropy of a token's gates divided by log E, on average: 1 = all experts alike, 0 = all to one",
    label="entropy of the gates",
    unit="gate",
)


class ConfidenceAnalysis(LayerAnalysis):
    """Mean highest gate, second gate, sum of the rest, entropy, and the margin of the first choice.

    Two tokens: one has all of its gates on one expert, the other a half and two quarters. Highest (1 + 0.5) / 2,
    second 0.25 / 2, and so on; the entropies are 0 and 1.5 of 2 bits:

    >>> from moeprobe.metrics.analyses.confidence import ConfidenceAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(ConfidenceAnalysis(), pair(route([[0, 0]], gates=[[[1, 0, 0, 0], [0.5, 0.25, 0.25, 0]]])))
    {'gate_highest': 0.75, 'gate_second': 0.125, 'gate_rest': 0.125, 'gate_margin': 0.625, 'gate_entropy': 0.375}
    """

    measures = (
        GATE_HIGHEST,
        GATE_SECOND,
        GATE_REST,
        GATE_MARGIN,
        GATE_ENTROPY,
    )
    signature = "tokens_counted"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token's gates are a distribution over at least two experts."""
        return layer.gates_sum_to_one and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the summed gates of the view and the number of tokens per image."""
        return {tokens: _sums(pair.view, part) for tokens, part in slices(pair.view).items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over tokens."""
        # Without every gate there is no entropy, nor in runs from before it was summed.
        return [
            metric.share_of(columns[metric.name], columns[self.signature])
            for metric in self.measures
            if metric.name in columns
        ]


def _sums(layer: LayerRouting, part: slice) -> dict[str, Tensor]:
    """Return the sums of some of the tokens; of the entropy only where the gates of all experts are known."""
    import torch

    from moeprobe.routing.record import highest_gates

    gates, valid = layer.gates[:, part], layer.valid[:, part]
    highest, second, remainder = highest_gates(gates)
    values = {
        GATE_HIGHEST.name: highest,
        GATE_SECOND.name: second,
        GATE_REST.name: remainder,
        GATE_MARGIN.name: highest - second,
    }
    if layer.every_gate:
        entropy = torch.special.entr(gates).sum(-1) / math.log(layer.num_experts)
        # Rounded gates of an even router may come to a little over 1.
        values[GATE_ENTROPY.name] = entropy.clamp(0, 1)
    # Masked, not multiplied: padding may hold NaN.
    sums = {name: value.masked_fill(~valid, 0).sum(1) for name, value in values.items()}
    return sums | {"tokens_counted": valid.sum(1)}
