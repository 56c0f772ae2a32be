"""How far does a router's choice for a token depend on the other tokens it sees? Some of them are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.contagion import ContagionAnalysis, metrics

if TYPE_CHECKING:
    from moeprobe.routing.record import LayerRouting


class TokenContagion(ContagionAnalysis):
    """Share of tokens that change experts when the router sees them with other tokens."""

    metric = "token_contagion"
    signature = "token_contagion_watched"
    exchanged = "other tokens at the router"
    measures = metrics("token", exchanged, short="router's tokens exchanged")

    def applies(self, layer: LayerRouting) -> bool:
        """Not where slots hold mixtures of tokens: there a token's weights are its own, and its slots depend on all."""
        return layer.slot is None and super().applies(layer)
