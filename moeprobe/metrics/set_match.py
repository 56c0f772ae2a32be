"""Are corresponding tokens with the same experts? The Jaccard index of the two sets: one axis for all hard routers.

J = |S ∩ T| / |S ∪ T| of the experts that have a token in the reference and in the view: 1 = the same experts, 0 = none
in common. It asks for no K, so it holds where experts choose and a token has any number of them. Where tokens choose,
the set is what they chose, before capacity ("chose another" and "was dropped" stay apart); where experts choose, what
was chosen found room.

Two empty sets are no trial: a token that nobody takes on either side has not kept its experts. Their share of all pairs
is ``unserved_both``, given where experts choose. Each J comes with its chance level, as in ``match``; chance
is drawn from all pairs of tokens, and a draw of two empty sets is no trial either.

The columns keep each pair's sets as bits (4 bytes per token and 31 experts), which the intervals of chance need.

Axes: B images, J pairs of tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.nulls import strata, tokens_of, used
from moeprobe.metrics.stats.bootstrap import Share
from moeprobe.metrics.stats.set_chance import SetChance, jaccard_of_pairs, set_chance_within_image
from moeprobe.metrics.token_kinds import by_token_kind, numbers, take_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


# Bits of an int32 without its sign: -1 is "no pair".
_BITS = 31


SET_JACCARD = Metric(
    "set_jaccard",
    about="overlap of the sets of experts of corresponding tokens, intersection over union; where tokens choose, of "
    "what they chose, before capacity",
    label="overlap of expert sets",
    short="set overlap",
    better="more",
    nulls=("pooled", "position", "image", "class"),
    rank=2,
    agreement=True,
    one_expert=True,
)
UNSERVED_BOTH = Metric(
    "unserved_both",
    about="share of pairs without an expert on either side, which are no trial of set_jaccard",
    label="pairs without an expert",
)


class SetMatch(LayerAnalysis):
    """Jaccard index of the sets of experts of corresponding tokens, with its chance level and kappa."""

    measures = (
        SET_JACCARD,
        UNSERVED_BOTH,
    )
    signature = "set_pairs"
    trial_lists = ("reference_set_", "view_set_")

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have some of the experts, and not always all."""
        some = layer.experts_choose or layer.top_k < layer.num_experts
        return layer.top_k > 0 and layer.num_experts > 1 and some

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the pairs of tokens per image and their sets, for patches (also by region) and prefix tokens."""
        found = {}
        for tokens, paired in by_token_kind(pair).items():
            columns = {"set_pairs": paired.present.sum(1)} | numbers(pair, paired)
            sides = {
                "reference": take_tokens(pair.reference.selected_mask, paired.reference),
                "view": take_tokens(pair.view.selected_mask, paired.view),
            }
            if pair.view.experts_choose:
                neither = ~sides["reference"].any(-1) & ~sides["view"].any(-1)
                columns["unserved_both"] = (neither & paired.present).sum(1)
            for side, member in sides.items():
                for word, bits in enumerate(_pack(member)):
                    columns[f"{side}_set_{word}"] = bits.masked_fill(~paired.present, -1)
            found[tokens] = columns
        return found

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the mean index, chance and kappa, and where experts choose the share of pairs without any expert."""
        first = columns["reference_set_0"].astype(np.int64)
        num_images, num_places = first.shape
        image, place = np.nonzero(first >= 0)
        words = sum(name.startswith("view_set_") for name in columns)
        rows = np.stack(
            [
                np.concatenate(
                    [columns[f"{side}_set_{word}"][image, place] for side in ("reference", "view")]
                )
                for word in range(words)
            ],
            axis=1,
        )
        different, number = np.unique(rows, axis=0, return_inverse=True)
        sets, (reference, view) = _unpack(different), number.reshape(2, -1)
        index = jaccard_of_pairs(sets[reference], sets[view])
        trial = (sets[reference] + sets[view]).any(1)

        def match(which: NDArray[np.bool_]) -> tuple[Share, NDArray[np.int64]]:
            count = np.bincount(image[which & trial], minlength=num_images)
            total = np.bincount(image[which], weights=index[which], minlength=num_images)
            return Share(total.astype(np.float64), count.astype(np.float64)), count

        whole, trials = match(np.ones_like(trial))
        metrics = [SET_JACCARD.raw(whole, trials)]
        nulls = strata(
            image,
            place,
            num_places=num_places,
            aligned=aligned,
            label=columns["label"] if self._class_null else None,
        )
        for null, stratum in nulls.items():
            here = used(stratum, image)
            chance = SetChance(
                image=image[here],
                reference=reference[here],
                view=view[here],
                sets=sets,
                stratum=stratum[here],
                num_images=num_images,
            )
            metrics += SET_JACCARD.chance_and_kappa(null, chance, *match(here))
        tokens = tokens_of(columns, image, place, aligned=aligned)
        if num_places > 1 and tokens is not None:  # a prefix token has no other in its image
            inside, several = set_chance_within_image(
                image=image, reference=reference, view=view, sets=sets, tokens=tokens, num_images=num_images
            )
            metrics += SET_JACCARD.chance_and_kappa("image", inside, *match(several[image]))
        if "unserved_both" in columns:
            pairs = columns["set_pairs"]
            share = Share(columns["unserved_both"].astype(np.float64), pairs.astype(np.float64))
            metrics.append(UNSERVED_BOTH.raw(share, pairs))
        return metrics


def _pack(member: Tensor) -> list[Tensor]:
    """Return sets ``(B, J, E)`` as bits, in as many int32 words ``(B, J)`` as they take."""
    import torch

    powers = 2 ** torch.arange(_BITS, device=member.device)
    return [
        (part.long() * powers[: part.shape[-1]]).sum(-1).to(torch.int32)
        for part in member.split(_BITS, dim=-1)
    ]


def _unpack(rows: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the sets ``(U, E)`` of rows of words ``(U, W)``, as ones and zeros."""
    bits = rows.astype(np.int64)[:, :, None] >> np.arange(_BITS) & 1
    sets = bits.reshape(len(rows), rows.shape[1] * _BITS).astype(np.float64)
    # Experts that no set holds say nothing.
    return sets[:, sets.any(0)]
