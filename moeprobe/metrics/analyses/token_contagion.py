"""How far does a router's choice for a token depend on the other tokens it sees? Some of them are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.contagion import ContagionAnalysis, metrics

if TYPE_CHECKING:
    from moeprobe.routing.record import LayerRouting


class TokenContagion(ContagionAnalysis):
    """Share of tokens that change experts when the router sees them with other tokens.

    Two of ten tokens change their only expert, which is a distance of 1 each:

    >>> from moeprobe.metrics.analyses.token_contagion import TokenContagion
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> before, after = route([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]]), route([[0, 0, 0, 0, 1, 1, 1, 1, 1, 0]])
    >>> numbers(TokenContagion(), pair(before, after))
    {'token_contagion': 0.2, 'token_contagion_dropped': 0.0, 'token_contagion_distance': 0.2}
    """

    metric = "token_contagion"
    signature = "token_contagion_watched"
    exchanged = "other tokens at the router"
    measures = metrics("token", exchanged, short="router's tokens exchanged")

    def applies(self, layer: LayerRouting) -> bool:
        """Not where slots hold mixtures of tokens: there a token's weights are its own, and its slots depend on all."""
        return layer.slot is None and super().applies(layer)
