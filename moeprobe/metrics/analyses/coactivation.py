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
from moeprobe.metrics.token_kinds import double, patches
from moeprobe.runtime.caching import cache_last

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

COACTIVATION = Metric(
    "coactivation",
    about="share of the tokens processed by any expert that experts i (column expert) and j (expert_b) both process",
    label="tokens of two experts",
)
LIFT = Metric(
    "coactivation_lift",
    about="coactivation divided by the product of the two experts' shares of tokens: 1 = as if independent; "
    "E (K − 1) / (K (E − 1)) where K of E are chosen evenly and at random",
    label="lift of two experts",
    unit="other",
)


class Coactivation(LayerAnalysis):
    """Which experts process the same tokens: the share of tokens of each pair, and its lift over independence.

    Experts 0 and 1 process two of four tokens together, and three each, so the lift is (2/4) / (3/4 · 3/4):

    >>> from moeprobe.metrics.analyses.coactivation import Coactivation
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(Coactivation(), pair(route([[[0, 1], [0, 1], [0, 2], [1, 2]]])))
    >>> value["coactivation 0 1"], value["coactivation_lift 0 1"]
    (0.5, 0.889)
    """

    measures = (COACTIVATION, LIFT)
    signature = "coactive"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token can have several experts, and not a share of each."""
        return layer.top_k > 1 and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return of how many tokens each two experts process both ``(B, E (E + 1) / 2)``, first with themselves."""
        import torch

        paired = patches(pair)
        mask = paired.of_view(pair.view.processed_mask) & paired.present[..., None]
        marks = double(mask)
        counts = (marks.transpose(1, 2) @ marks).round().long()
        experts, partners = torch.triu_indices(pair.view.num_experts, pair.view.num_experts).tolist()
        columns = {"coactive": counts[:, experts, partners], "coactive_tokens": mask.any(-1).sum(1)}
        return {pair.view.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both numbers of each two different experts."""
        tokens = columns["coactive_tokens"]
        pairs = _Pairs(columns["coactive"].astype(np.float64), tokens.astype(np.float64))
        estimators = []
        for expert, partner in pairs.experts:
            share = Share(pairs.tokens_of(expert, partner), pairs.tokens)
            estimators.append(COACTIVATION.raw(share, tokens, expert=expert, expert_b=partner))
            estimators.append(
                LIFT.raw(_Lift(pairs, expert, partner), tokens, expert=expert, expert_b=partner)
            )
        return estimators


class _Pairs:
    """Tokens of each two experts, from ``counts`` ``(n, E (E + 1) / 2)`` as ``sums`` returns them, and all ``(n,)``."""

    def __init__(self, counts: Array, tokens: Array) -> None:
        self._counts, self.tokens = counts, tokens
        number = round((np.sqrt(8 * counts.shape[1] + 1) - 1) / 2)
        order = zip(*(index.tolist() for index in np.triu_indices(number)), strict=True)
        self._column = {pair: column for column, pair in enumerate(order)}

    @property
    def experts(self) -> list[tuple[int, int]]:
        """Each two different experts."""
        return [(expert, partner) for expert, partner in self._column if expert != partner]

    def tokens_of(self, expert: int, partner: int) -> Array:
        """Return the tokens ``(n,)`` that two experts both process, or the same one does."""
        return self._counts[:, self._column[expert, partner]]

    @cache_last
    def under(self, weights: Array) -> Array:
        """Return the sums of all pairs ``(E (E + 1) / 2, R)`` under weights ``(n, R)``."""
        return self._counts.T @ weights

    def columns_of(self, expert: int, partner: int) -> list[int]:
        """Return the columns of the pair, and of either expert alone."""
        return [self._column[pair] for pair in ((expert, partner), (expert, expert), (partner, partner))]


@dataclass(frozen=True)
class _Lift:
    """n_ij N / (n_i n_j) of two experts; NaN where either has no token."""

    pairs: _Pairs
    expert: int
    partner: int

    def evaluate(self, weights: Array) -> Array:
        """Return the lift under each set of weights."""
        together, of_expert, of_partner = self.pairs.under(weights)[
            self.pairs.columns_of(self.expert, self.partner)
        ]
        return divide(together * (self.pairs.tokens @ weights), of_expert * of_partner)

    def totals(self) -> Totals:
        """Return the four sums."""
        return np.array([part.sum() for part in (*self._parts(), self.pairs.tokens)])

    def value(self, totals: Totals) -> float:
        """Return the lift."""
        together, of_expert, of_partner, tokens = totals
        return float(divide(together * tokens, of_expert * of_partner))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the lift by the weight of each image."""
        together, of_expert, of_partner, tokens = self.totals() if totals is None else totals
        pair_counts, expert_counts, partner_counts = self._parts()
        rate = (
            divide(expert_counts, of_expert)
            + divide(partner_counts, of_partner)
            - divide(self.pairs.tokens, tokens)
        )
        return (
            divide(pair_counts * tokens, of_expert * of_partner)
            - divide(together * tokens, of_expert * of_partner) * rate
        )

    def _parts(self) -> tuple[Array, Array, Array]:
        tokens_of = self.pairs.tokens_of
        return (
            tokens_of(self.expert, self.partner),
            tokens_of(self.expert, self.expert),
            tokens_of(self.partner, self.partner),
        )
