"""How far does a router's choice for a token depend on the other tokens it sees? Some of them are exchanged."""

from moeprobe.analyses._contagion import Contagion


class TokenContagion(Contagion):
    """Share of tokens that change experts when the router sees other tokens beside them."""

    metric = "token_contagion"
    signature = "token_contagion_watched"
