"""How confident is the router? Table 5 of the PRC paper.

Mean highest gate, mean second, mean sum of the rest, the margin between first and second, and the entropy of the gates,
over all tokens. Which tokens the paper averages is not published: here the patches, with prefix tokens apart. Of the
entropy it gives no numbers, but says that routers trained for consistency by divergence (``jsd``) have a slightly
higher one than routers trained with PRC (III-B).

The margin between the first two gates says when the first choice changes. When the *set* of K experts changes
is said by the selection margin: the K-th less the (K + 1)-th of the scores that the choice is read off. Softmax routers
choose by their gates, so theirs are margins of gates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Ratio, Share

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


SELECTION_MARGIN = Metric(
    "selection_margin",
    about="the K-th score of a token less the (K+1)-th, on average, of the scores that the choice is read off; "
    "the gates where there are no others",
    label="K-th − (K+1)-th score",
    unit="other",
)
_MARGINS_COUNTED = "selection_margins_counted"


class ConfidenceAnalysis(LayerAnalysis):
    """Mean highest gate, second gate, sum of the rest, entropy, and the margins of the first choice and of the set."""

    measures = (
        GATE_HIGHEST,
        GATE_SECOND,
        GATE_REST,
        GATE_MARGIN,
        GATE_ENTROPY,
        SELECTION_MARGIN,
    )
    signature = "tokens_counted"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token's gates are a distribution over at least two experts."""
        return layer.gates_sum_to_one and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the summed gates of the view and the number of tokens per image."""
        prefix = pair.view.num_prefix_tokens
        parts = {pair.view.modality.token: slice(prefix, None)}
        if prefix:
            parts["prefix"] = slice(0, prefix)
        return {tokens: _sums(pair.view, part) for tokens, part in parts.items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over tokens."""
        denominators = {SELECTION_MARGIN.name: _MARGINS_COUNTED}
        metrics = []
        for metric in self.measures:
            # Without every gate there is no entropy and no selection margin, nor in runs from before they were summed.
            if metric.name in columns:
                trials = columns[denominators.get(metric.name, "tokens_counted")]
                # Scores, unlike gates, may be above 1, and so may their margins.
                mean = Ratio if metric is SELECTION_MARGIN else Share
                sums = columns[metric.name].astype(np.float64)
                metrics.append(metric.raw(mean(sums, trials.astype(np.float64)), trials))
        return metrics


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
    return sums | {"tokens_counted": valid.sum(1)} | _selection_margins(layer, part)


def selection_margins(layer: LayerRouting, part: slice) -> Tensor | None:
    """Return how far the sets of some tokens are from changing ``(B, N)``; None where no token of the layer has that.

    A token whose experts are not the K highest has none (NaN): its choice was not read off these scores alone (within
    groups of experts, say).
    """
    if not layer.tokens_choose or layer.top_k >= layer.num_experts:
        return None
    if layer.scores is None and not layer.every_gate:
        return None
    scores = (layer.gates if layer.scores is None else layer.scores)[:, part]
    selected = layer.selected_mask[:, part]
    # In double precision: large scores may differ by little.
    lowest = scores.double().masked_fill(~selected, math.inf).amin(-1)
    next_best = scores.double().masked_fill(selected, -math.inf).amax(-1)
    margin = lowest - next_best
    has_margin = layer.valid[:, part] & margin.isfinite() & (margin >= 0) & (selected.sum(-1) == layer.top_k)
    return margin.masked_fill(~has_margin, math.nan)


def _selection_margins(layer: LayerRouting, part: slice) -> dict[str, Tensor]:
    """Return the summed margins of the sets, and how many tokens have one."""
    margin = selection_margins(layer, part)
    if margin is None:
        return {}
    has_margin = margin.isfinite()
    return {
        SELECTION_MARGIN.name: margin.masked_fill(~has_margin, 0).sum(1),
        _MARGINS_COUNTED: has_margin.sum(1),
    }
