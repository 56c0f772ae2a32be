"""Where do two routings of the same tokens differ? Layer by layer, and by the place in the sequence.

A token differs in a layer where its sets of experts do. It is what a server and a trainer that routes the same tokens
again disagree in ("Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", 2025).

Axes: B images or texts, J tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.token_kinds import by_position, by_token_kind, unlike

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

CHOICE_DIFFERS = Metric(
    "choice_differs",
    about="share of the tokens whose set of experts differs in this layer; for sequences, the column tokens also "
    "splits it by prompt, generated tokens and position",
    label="tokens whose experts differ",
    short="differ",
    better="less",
    rank=19,
)


class Disagreement(LayerAnalysis):
    """Share of tokens whose sets of experts differ; for sequences also by position.

    Two of ten tokens choose other experts:

    >>> from moeprobe.metrics.analyses.disagreement import Disagreement
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first, second = route([[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]]), route([[0, 0, 1, 1, 1, 1, 2, 2, 2, 0]])
    >>> numbers(Disagreement(), pair(first, second))
    {'choice_differs': 0.2}
    """

    measures = (CHOICE_DIFFERS,)
    signature = "differ_trials"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose some of several experts."""
        return layer.tokens_choose and layer.top_k < layer.num_experts

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return how many tokens differ per image, and of how many, for each kind of tokens and by position."""
        kinds = by_token_kind(pair)
        if pair.view.grid is None:
            kinds |= by_position(kinds[pair.view.modality.token])
        # Most kinds are of the same tokens, of which others are present.
        by_tokens: dict[int, Tensor] = {}
        sums = {}
        for tokens, paired in kinds.items():
            if id(paired.view) not in by_tokens:
                by_tokens[id(paired.view)] = unlike(pair, paired)
            differ = by_tokens[id(paired.view)] & paired.present
            sums[tokens] = {"differ": differ.sum(1), "differ_trials": paired.present.sum(1)}
        return sums

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [CHOICE_DIFFERS.share_of(columns["differ"], columns["differ_trials"])]
