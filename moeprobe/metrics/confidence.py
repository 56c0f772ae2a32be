"""How sure is the router? Table 5 of the PRC paper.

Mean highest gate, mean second, mean sum of the rest, and the margin between first and second, over all tokens. Which
tokens the paper averages is not published: here the patches, with prefix tokens apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


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


class Confidence(LayerAnalysis):
    """Mean highest gate, second gate, sum of the rest, and margin between the first two."""

    measures = (
        GATE_HIGHEST,
        GATE_SECOND,
        GATE_REST,
        GATE_MARGIN,
    )
    signature = "tokens_counted"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token's gates are a distribution over at least two experts."""
        return layer.gates_sum_to_one and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the summed gates of the view and the number of tokens per image."""
        prefix = pair.view.num_prefix_tokens
        found = {pair.view.modality.token: _sum(pair.view.gates[:, prefix:], pair.view.valid[:, prefix:])}
        if prefix:
            found["prefix"] = _sum(pair.view.gates[:, :prefix], pair.view.valid[:, :prefix])
        return found

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the four means over tokens."""
        count = columns["tokens_counted"].astype(np.float64)
        return [
            metric.raw(Share(columns[metric.name].astype(np.float64), count), columns["tokens_counted"])
            for metric in self.measures
        ]


def _sum(gates: Tensor, valid: Tensor) -> dict[str, Tensor]:
    from moeprobe.routing.record import highest_gates

    highest, second, rest = highest_gates(gates)
    names = (metric.name for metric in Confidence.measures)
    values = dict(zip(names, (highest, second, rest, highest - second), strict=True))
    # Masked, not multiplied: padding may hold NaN.
    sums = {name: value.masked_fill(~valid, 0).sum(1) for name, value in values.items()}
    return sums | {"tokens_counted": valid.sum(1)}
