"""Which experts process the same tokens? Where a token has several.

* ``coactivation``: the share of tokens that both experts process;
* ``coactivation_lift``: that share over the product of the experts' own shares: 1 = as if independent. Tokens that
  choose K different experts of E evenly and at random have a lift of E (K − 1) / (K (E − 1)), which is below 1.

Tokens that no expert processes do not count. Axes: B images, J tokens, E experts, n images of a whole run, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Array, Share, Totals, divide
from moeprobe.metrics.token_kinds import double, patches, take_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting

COACTIVATION = Metric(
    "coactivation",
    about="share of the tokens that experts i (column expert) and j (expert_b) both process, of those that any does",
    label="tokens of two experts",
)
LIFT = Metric(
    "coactivation_lift",
    about="coactivation over the product of the shares of tokens that each of the two experts processes: 1 = as if "
    "independent; E (K − 1) / (K (E − 1)) where K of E are chosen evenly and at random",
    label="lift of two experts",
    unit="other",
)


class Coactivation(LayerAnalysis):
    """Which experts process the same tokens: the share of tokens of each two, and its lift against independence."""

    measures = (COACTIVATION, LIFT)
    signature = "coactive"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token can have several experts, and not a share of each."""
        return layer.top_k > 1 and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return of how many tokens each two experts process both ``(B, E (E + 1) / 2)``, first with themselves."""
        import torch

        paired = patches(pair)
        mask = take_tokens(pair.view.processed_mask, paired.view) & paired.present[..., None]
        marks = double(mask)
        both = (marks.transpose(1, 2) @ marks).round().long()
        one, other = torch.triu_indices(pair.view.num_experts, pair.view.num_experts).tolist()
        columns = {"coactive": both[:, one, other], "coactive_tokens": mask.any(-1).sum(1)}
        return {pair.view.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both numbers of each two different experts."""
        both, tokens = columns["coactive"].astype(np.float64), columns["coactive_tokens"]
        number = round((np.sqrt(8 * both.shape[1] + 1) - 1) / 2)
        place = {pair: column for column, pair in enumerate(zip(*np.triu_indices(number), strict=True))}
        total = tokens.astype(np.float64)
        found = []
        for (one, other), column in place.items():
            if one == other:
                continue
            experts = {"expert": int(one), "expert_b": int(other)}
            own = both[:, column]
            found.append(COACTIVATION.raw(Share(own, total), tokens, **experts))
            alone = both[:, [place[one, one], place[other, other]]]
            found.append(LIFT.raw(_Lift(own, alone, total), tokens, **experts))
        return found


@dataclass(frozen=True)
class _Lift:
    """n_ij N / (n_i n_j), from ``both`` ``(n,)``, ``alone`` ``(n, 2)`` and ``tokens`` ``(n,)``; NaN without either."""

    both: Array
    alone: Array
    tokens: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the lift under each set of weights."""
        one, other = self.alone.T @ weights
        return divide((self.both @ weights) * (self.tokens @ weights), one * other)

    def totals(self) -> Totals:
        """Return the four sums."""
        return np.array([self.both.sum(), *self.alone.sum(0), self.tokens.sum()])

    def value(self, totals: Totals) -> float:
        """Return the lift."""
        both, one, other, tokens = totals
        return float(divide(both * tokens, one * other))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the lift by the weight of each image."""
        both, one, other, tokens = self.totals() if totals is None else totals
        rate = divide(self.alone[:, 0], one) + divide(self.alone[:, 1], other) - divide(self.tokens, tokens)
        return divide(self.both * tokens, one * other) - divide(both * tokens, one * other) * rate
