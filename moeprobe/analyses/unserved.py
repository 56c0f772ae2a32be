"""Which tokens does no expert process? Where experts choose, what load entropy is where tokens choose.

Where experts choose, all are equally busy, and it is the tokens that may come off badly; where tokens choose, only a
finite capacity leaves any out. A token without an expert keeps what it had: the layer adds nothing to it.
"""

import numpy as np
from torch import Tensor

from moeprobe.analyses.base import Columns, LayerAnalysis, LayerPair, Metric
from moeprobe.routing import LayerRouting
from moeprobe.statistics import Ratio


class Unserved(LayerAnalysis):
    """Share of the view's tokens that no expert processes."""

    signature = "unserved_tokens"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token can be left without an expert: not where every expert gets a share of every token."""
        return layer.top_k > 0

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the tokens per image, and how many of them no expert processes, for patches and prefix tokens."""
        layer = pair.view
        prefix = layer.num_prefix_tokens
        alone = ~layer.served.any(-1) & layer.valid
        parts = {layer.medium.token: slice(prefix, None)} | ({"prefix": slice(0, prefix)} if prefix else {})
        return {
            tokens: {"unserved_tokens": layer.valid[:, part].sum(1), "unserved": alone[:, part].sum(1)}
            for tokens, part in parts.items()
        }

    def metrics(self, columns: Columns, *, aligned: bool) -> list[Metric]:
        """Return the share."""
        tokens = columns["unserved_tokens"]
        share = Ratio(columns["unserved"].astype(np.float64), tokens.astype(np.float64))
        return [Metric("unserved", "", share, tokens)]
