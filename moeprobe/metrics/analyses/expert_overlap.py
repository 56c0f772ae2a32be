"""Share of a token's experts in the reference that the view gives it, too.

Over all tokens (each choice counts), and expert by expert (column ``expert``). With one expert per token it is the
match of first experts. κ is, where loads are equal, the intraclass correlation of membership: the covariance
of a token's memberships on both sides, added up over the experts, over their variance. For trainings whose experts are
aligned (``moeprobe align``).

Axes: B images, J pairs of tokens, K choices, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.kappa import MeanProduct
from moeprobe.metrics.stats.statistic import Array, Share
from moeprobe.metrics.token_kinds import NO_PAIR, by_token_kind, choices, num_experts, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

EXPERT_OVERLAP = Metric(
    "expert_overlap",
    about="of the experts that a token chooses in one training, the share that it chooses in the other, whose experts "
    "are aligned; over all tokens, and for each expert in the column expert",
    label="experts in common",
    better="more",
    nulls=("pooled", "position"),
    rank=6,
    agreement=True,
    one_expert=True,
)


class ExpertOverlap(LayerAnalysis):
    """Share of a token's experts that it has on both sides, with its chance level and kappa.

    Two images with one token each keep 2 and 1 of their two experts, 3 of 4. Tokens of different images have 1 and 1
    in common, so chance is 2 of 4, and κ = (0.75 − 0.5) / (1 − 0.5). Expert 1 keeps one of its two tokens:

    >>> from moeprobe.metrics.analyses.expert_overlap import ExpertOverlap
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(ExpertOverlap(), pair(route([[[0, 1]], [[1, 2]]]), route([[[0, 1]], [[0, 2]]])))
    >>> value["expert_overlap"], value["expert_overlap_kappa pooled"], value["expert_overlap 1"]
    (0.75, 0.5, 0.5)
    """

    measures = (EXPERT_OVERLAP,)
    signature = "overlap_pairs"
    trial_lists = ("reference_selected", "view_selected")

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have some of the experts, and not always all."""
        is_sparse = layer.experts_choose or layer.top_k < layer.num_experts
        return layer.top_k > 0 and layer.num_experts > 1 and is_sparse

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the pairs per image and their choices, for patches (also by region) and prefix tokens."""
        return {
            tokens: {"overlap_pairs": paired.present.sum(1)}
            | {name: column for name, column in numbers(pair, paired).items() if name != "token_id"}
            | choices(pair, paired)
            for tokens, paired in by_token_kind(pair).items()
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the overlap with chance and kappa, and the overlap of each expert."""
        count = num_experts(columns)
        first, second = (_members(columns[f"{side}_selected"], count) for side in ("reference", "view"))
        pairs = columns["overlap_pairs"].astype(np.float64)
        of_first, of_second, of_both = (members.sum(1) for members in (first, second, first * second))
        had = of_first.sum(1)
        overlap, trials = Share(of_both.sum(1), had), had.astype(np.int64)
        estimators = [EXPERT_OVERLAP.raw(overlap, trials)]
        chances = {"pooled": MeanProduct(of_first, of_second, had, pairs)}
        if aligned and first.shape[1] > 1:
            flat = [members.reshape(len(members), -1) for members in (first, second)]
            is_pair = (columns["view_selected"] != NO_PAIR).any(-1).astype(np.float64)
            chances["position"] = MeanProduct(flat[0], flat[1], first.sum(2), is_pair)
        for null, chance in chances.items():
            estimators += EXPERT_OVERLAP.chance_and_kappa(null, chance, overlap, trials)
        return estimators + [
            EXPERT_OVERLAP.raw(
                Share(of_both[:, expert], of_first[:, expert]),
                of_first[:, expert].astype(np.int64),
                expert=expert,
            )
            for expert in range(count)
        ]


def _members(selected: NDArray[Any], count: int) -> Array:
    """Return which experts each token has ``(n, J, E)``, of choices ``(n, J, K)``; none where there is no pair."""
    members = np.zeros((*selected.shape[:2], count + 1))
    # What is absent is written into one column more.
    np.put_along_axis(members, np.where(selected < 0, count, selected).astype(np.int64), 1.0, axis=-1)
    return members[..., :count]
