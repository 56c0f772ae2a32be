"""Measures of a token whose context was exchanged.

Axes: B images, T tokens, P patches, E experts, K choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.divergence import jensen_shannon_distance, shares
from moeprobe.metrics.token_kinds import slices

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


def metrics(kind: str, exchanged: str, *, short: str) -> tuple[Metric, Metric, Metric]:
    """Return the metrics for an exchange; ``exchanged`` fits into a sentence, ``short`` heads a panel."""
    name = f"{kind}_contagion"
    share = Metric(
        name,
        about=f"share of the watched tokens that another set of experts processes when {exchanged} are exchanged",
        short=short,
        noun=f"share of tokens that change experts when {exchanged} are exchanged",
    )
    dropped = Metric(
        f"{name}_dropped",
        about=f"the part of {name} in which the same experts were selected but had capacity in one case only",
        label=f"{kind} contagion: dropping alone",
    )
    distance = Metric(
        f"{name}_distance",
        about=f"mean Jensen-Shannon distance (base 2) of a token's combine weights when {exchanged} are exchanged; 1 "
        "where it has no weights in one case only",
        label=f"{kind} contagion: distance",
        noun=f"distance of the weights when {exchanged} are exchanged",
        unit="distance",
    )
    return share, dropped, distance


class ContagionAnalysis(LayerAnalysis):
    """Share of watched tokens that are worked on by other experts, and how far their combine weights move.

    The reference is the routing before the exchange, the view that after it. Patches without a partner were exchanged
    themselves and are not watched; nor are tokens that are not valid in the view.

    Attributes:
        metric: what the share is called.
        exchanged: the exchanged part, worded for the middle of a sentence.
        measures: the share, the share of tokens dropped on one side alone, and the mean distance of the weights.
    """

    metric: ClassVar[str]
    exchanged: ClassVar[str]
    measures: ClassVar[tuple[Metric, Metric, Metric]]

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have experts, or weights on all of them that are a distribution."""
        return layer.top_k > 0 or layer.gates_sum_to_one

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return watched tokens, changes and summed distances per image, for patches and prefix tokens."""
        import torch

        prefix = pair.view.num_prefix_tokens
        watched = pair.reference.valid & pair.view.valid
        trials = torch.cat([watched[:, :prefix], watched[:, prefix:] & (pair.view_patch >= 0)], dim=1)
        values = self._values(pair.reference, pair.view)
        return {
            tokens: {f"{self.metric}{name}": column for name, column in _sum(values, trials, part).items()}
            for tokens, part in slices(pair.view).items()
        }

    def _values(self, reference: LayerRouting, view: LayerRouting) -> dict[str, Tensor]:
        """Return the values of each token ``(B, T)``; changes only where tokens have experts."""
        values = {"_distance": jensen_shannon_distance(shares(reference.weights), shares(view.weights))}
        if view.top_k > 0:
            changed = ~reference.processed_the_same(view)
            values |= {"_changed": changed, "_dropped": changed & reference.selects_the_same(view)}
        return values

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the shares, where there are any, and the mean distance, over watched tokens."""
        trials = columns[self.signature]
        return [
            metric.share_of(columns[f"{self.metric}{name}"], trials)
            for metric, name in zip(self.measures, ("_changed", "_dropped", "_distance"), strict=True)
            if f"{self.metric}{name}" in columns
        ]


def _sum(values: dict[str, Tensor], watched: Tensor, tokens: slice) -> dict[str, Tensor]:
    # Masked, not multiplied: padding may hold NaN.
    sums = {name: value.masked_fill(~watched, 0)[:, tokens].sum(1) for name, value in values.items()}
    return sums | {"_watched": watched[:, tokens].sum(1)}
