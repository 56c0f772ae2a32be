"""Which tokens does no expert process? Where experts choose, what load entropy is where tokens choose.

Where experts choose, all are equally busy, and it is the tokens that may come off badly; where tokens choose, only a
finite capacity leaves any out. A token without an expert keeps what it had: the layer adds nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.token_kinds import slices

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


UNSERVED = Metric(
    "unserved",
    about="share of the tokens of the view (or of both random views) that no expert processes",
    label="tokens without an expert",
    short="unserved",
    rank=24,
    headline=True,
    along="others",
)


class Unserved(LayerAnalysis):
    """Share of the tokens of the view, or of both views, that no expert processes.

    Two experts choose among five tokens, and leave out one:

    >>> from moeprobe.metrics.analyses.unserved import Unserved
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(Unserved(), pair(route([[[-1, -1], [0, -1], [-1, 1], [0, 1], [0, -1]]], experts_choose=True)))
    {'unserved': 0.2}
    """

    measures = (UNSERVED,)
    signature = "unserved_tokens"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether a token can be left without an expert: not where every expert gets a share of every token."""
        return layer.top_k > 0

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the tokens per image, and how many of them no expert processes, for patches and prefix tokens."""
        import torch

        # View by view, since only the tokens of one view are as many.
        valid = [layer.valid for layer in pair.views]
        alone = [~(layer.processed & (layer.selected >= 0)).any(-1) & layer.valid for layer in pair.views]
        return {
            tokens: {
                "unserved_tokens": torch.cat([view[:, part] for view in valid], 1).sum(1),
                "unserved": torch.cat([view[:, part] for view in alone], 1).sum(1),
            }
            for tokens, part in slices(pair.view).items()
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [UNSERVED.share_of(columns["unserved"], columns["unserved_tokens"])]
