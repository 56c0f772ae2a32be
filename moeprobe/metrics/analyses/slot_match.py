"""Do corresponding tokens get most from the same slot? The match of routers whose experts work on mixtures of tokens.

Every expert of a soft router has a few slots; each slot holds a weighted mean of all tokens, and a token gets a
weighted mean of all slots back. Nothing is chosen, so there is no set of experts; the slot of the largest weight is
what a token leans on. Chance levels and kappa as in ``match``.

Source: Puigcerver et al. 2023 for the slots. Axes: B images, J pairs of tokens, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.nulls import Nulls, against_chance, levels
from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.token_kinds import TOKEN_ID, by_token_kind, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


SLOT_MATCH = Metric(
    "slot_match",
    about="share of corresponding tokens whose largest combine weight is on the same slot",
    label="same slot",
    better="more",
    nulls=("pooled", "position", "image", "class", "token"),
    rank=3,
    agreement=True,
)


class SlotMatch(LayerAnalysis):
    """Share of corresponding tokens whose largest combine weight is on the same slot, with chance and kappa.

    Two images with two tokens each, of which three lean on the same slot. One of the 8 pairs of different images
    is on the same slot, so κ = (0.75 − 0.125) / (1 − 0.125):

    >>> from moeprobe.metrics.analyses.slot_match import SlotMatch
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> first, second = (route([[0, 0], [0, 0]], slot=slots) for slots in ([[0, 1], [2, 3]], [[0, 1], [2, 0]]))
    >>> value = numbers(SlotMatch(), pair(first, second))
    >>> value["slot_match"], value["slot_match_chance pooled"], value["slot_match_kappa pooled"]
    (0.75, 0.125, 0.714)
    """

    measures = (SLOT_MATCH,)
    signature = "slot_trials"
    trial_lists = ("reference_slot", "view_slot", TOKEN_ID)

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    def applies(self, layer: LayerRouting) -> bool:
        """Whether slots hold mixtures of tokens."""
        return layer.slot is not None

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return matches and trials per image and each side's slots, by kind of tokens."""
        import torch

        assert pair.reference.slot is not None
        assert pair.view.slot is not None
        columns = {}
        for tokens, paired in by_token_kind(pair).items():
            reference, view = (
                slots.to(torch.int32).masked_fill(~paired.present, -1)
                for slots in (paired.of_reference(pair.reference.slot), paired.of_view(pair.view.slot))
            )
            columns[tokens] = {
                "slot_trials": paired.present.sum(1),
                "slot_match": ((reference == view) & paired.present).sum(1),
                "reference_slot": reference,
                "view_slot": view,
            } | numbers(pair, paired)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return match, chance and kappa."""
        reference, view = (columns[f"{side}_slot"].astype(np.int64) for side in ("reference", "view"))
        num_images, num_places = reference.shape
        image, position = np.nonzero(reference >= 0)
        nulls = Nulls.of(
            columns, image, position, num_places=num_places, aligned=aligned, class_null=self._class_null
        )
        similarity = same(reference[image, position], view[image, position])
        of_nulls = levels(Trials(image, similarity, num_images=num_images), nulls)
        match = SLOT_MATCH.share_of(columns["slot_match"], columns["slot_trials"])
        return [match, *against_chance(SLOT_MATCH, of_nulls)]
