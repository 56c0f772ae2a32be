"""What is measured where something beside a token was exchanged, and the token is watched.

Axes: B images, T tokens, P patches, E experts, K choices.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.stats.bootstrap import Share
from moeprobe.metrics.stats.divergence import jensen_shannon_distance, shares
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.record import LayerRouting


class Contagion(LayerAnalysis):
    """Share of watched tokens that are worked on by other experts, and how far their combine weights move.

    The reference is the routing before the exchange, the view that after it. Patches without a partner were exchanged
    themselves and are not watched; nor are tokens that are not valid in the view.

    Attributes:
        metric: what the share is called; ``_dropped`` is the share of tokens that selected the same experts but were
            dropped where they were served, or served where they were dropped; ``_distance`` the mean Jensen-Shannon
            distance of the weights.
    """

    metric: ClassVar[str]

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have experts, or weights on all of them that are a distribution."""
        return layer.top_k > 0 or layer.gates_sum_to_one

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return watched tokens, changes and summed distances per image, for patches and prefix tokens."""
        prefix = pair.view.num_prefix_tokens
        watched = pair.reference.valid & pair.view.valid
        kept = torch.cat([watched[:, :prefix], watched[:, prefix:] & (pair.view_patch >= 0)], dim=1)
        values = self._values(pair.reference, pair.view)
        found = {"patch": _sum(values, kept, slice(prefix, None))}
        if prefix:
            found["prefix"] = _sum(values, kept, slice(0, prefix))
        return {
            tokens: {f"{self.metric}{name}": column for name, column in columns.items()}
            for tokens, columns in found.items()
        }

    def _values(self, reference: LayerRouting, view: LayerRouting) -> dict[str, Tensor]:
        """Return what is known of each token ``(B, T)``; changes only where tokens have experts."""
        values = {"_distance": jensen_shannon_distance(shares(reference.weights), shares(view.weights))}
        if view.top_k > 0:
            changed = ~reference.processed_the_same(view)
            values |= {"_changed": changed, "_dropped": changed & reference.selects_the_same(view)}
        return values

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the shares, where there are any, and the mean distance, over watched tokens."""
        trials = columns[self.signature]
        return [
            Estimator(
                f"{self.metric}{name}",
                "",
                Share(columns[f"{self.metric}{column}"].astype(np.float64), trials.astype(np.float64)),
                trials,
            )
            for name, column in (("", "_changed"), ("_dropped", "_dropped"), ("_distance", "_distance"))
            if f"{self.metric}{column}" in columns
        ]


def _sum(values: dict[str, Tensor], watched: Tensor, tokens: slice) -> dict[str, Tensor]:
    # Masked, not multiplied: what stands in padding may be no number.
    sums = {name: value.masked_fill(~watched, 0)[:, tokens].sum(1) for name, value in values.items()}
    return sums | {"_watched": watched[:, tokens].sum(1)}
