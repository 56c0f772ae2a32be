"""How far does a router's choice for a token depend on the other tokens it sees? Some of them are exchanged."""

from moeprobe.metrics.contagion import Contagion
from moeprobe.routing.record import LayerRouting


class TokenContagion(Contagion):
    """Share of tokens that change experts when the router sees other tokens beside them."""

    metric = "token_contagion"
    signature = "token_contagion_watched"

    def applies(self, layer: LayerRouting) -> bool:
        """Not where slots hold mixtures of tokens: there a token's weights are its own, and its slots depend on all."""
        return layer.slot is None and super().applies(layer)
