"""How sure is the router? Table 5 of the PRC paper.

Mean highest gate, mean second, mean sum of the rest, and the margin between first and second, over all tokens. Which
tokens the paper averages is not published: here the patches, with prefix tokens apart.
"""

import numpy as np
from torch import Tensor

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.stats.bootstrap import Share
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.record import LayerRouting, highest_gates

METRICS = ("gate_highest", "gate_second", "gate_rest", "gate_margin")


class Confidence(LayerAnalysis):
    """Mean highest gate, second gate, sum of the rest, and margin between the first two."""

    signature = "tokens_counted"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token's gates are a distribution over at least two experts."""
        return layer.gates_sum_to_one and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the summed gates of the view and the number of tokens per image."""
        prefix = pair.view.num_prefix_tokens
        found = {pair.view.medium.token: _sum(pair.view.gates[:, prefix:], pair.view.valid[:, prefix:])}
        if prefix:
            found["prefix"] = _sum(pair.view.gates[:, :prefix], pair.view.valid[:, :prefix])
        return found

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the four means over tokens."""
        count = columns["tokens_counted"].astype(np.float64)
        return [
            Estimator(name, "", Share(columns[name].astype(np.float64), count), columns["tokens_counted"])
            for name in METRICS
        ]


def _sum(gates: Tensor, valid: Tensor) -> dict[str, Tensor]:
    highest, second, rest = highest_gates(gates)
    values = dict(zip(METRICS, (highest, second, rest, highest - second), strict=True))
    # Masked, not multiplied: what stands in padding may be no number.
    sums = {name: value.masked_fill(~valid, 0).sum(1) for name, value in values.items()}
    return sums | {"tokens_counted": valid.sum(1)}
