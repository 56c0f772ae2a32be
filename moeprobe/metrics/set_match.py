"""Are corresponding tokens with the same experts? The Jaccard index of the two sets: one axis for all hard routers.

J = |S ∩ T| / |S ∪ T| of the experts that have a token in the reference and in the view: 1 = the same experts, 0 = none
in common. It asks for no K, so it holds where experts choose and a token has any number of them. Where tokens choose,
the set is what they chose, before capacity ("chose another" and "was dropped" stay apart); where experts choose, what
was chosen found room.

Two empty sets are no trial: a token that nobody takes on either side has not kept its experts. Their share of all pairs
is ``unserved_both``, given where experts choose. Each J comes with its chance level, as in ``match``; chance
is drawn from all pairs of tokens, and a draw of two empty sets is no trial either.

The columns keep what tokens chose, as those of ``match`` do, and where experts choose each pair's sets as bits (4 bytes
per token and 31 experts): the intervals of chance need them.

Axes: B images, J pairs of tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.nulls import against_chance, strata, tokens_of, used
from moeprobe.metrics.stats.alike import jaccard
from moeprobe.metrics.stats.set_chance import SetChance, jaccard_of_pairs, set_chance_within_image
from moeprobe.metrics.stats.statistic import Array, Share
from moeprobe.metrics.stats.strata import Strata
from moeprobe.metrics.stats.trials import Trials
from moeprobe.metrics.stats.within_image import Tokens, per_image
from moeprobe.metrics.token_kinds import (
    NO_PAIR,
    TOKEN_ID,
    Paired,
    by_token_kind,
    choices,
    num_experts,
    numbers,
    take_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


# Bits of an int32 without its sign: -1 is "no pair".
_BITS = 31
# Choices of a token up to which the subsets of its set are counted: 2**K − 1 each.
_FEW = 4


SET_JACCARD = Metric(
    "set_jaccard",
    about="overlap of the sets of experts of corresponding tokens, intersection over union; where tokens choose, of "
    "what they chose, before capacity",
    label="overlap of expert sets",
    short="set overlap",
    better="more",
    nulls=("pooled", "position", "image", "class", "token"),
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
    trial_lists = ("reference_set_", "view_set_", "reference_selected", "view_selected", TOKEN_ID)

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have some of the experts, and not always all."""
        some = layer.experts_choose or layer.top_k < layer.num_experts
        return layer.top_k > 0 and layer.num_experts > 1 and some

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the pairs of tokens per image and their sets, for patches (also by region) and prefix tokens."""
        return {tokens: _count(pair, paired) for tokens, paired in by_token_kind(pair).items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the index with chance and kappa, and the share of pairs without an expert."""
        sides = _of_choices(columns) if "reference_set_0" not in columns else _of_words(columns)
        index, trial = sides.index, sides.trial
        num_images, num_places = sides.num_images, sides.num_places
        count = np.bincount(sides.image[trial], minlength=num_images)
        whole = Share(per_image(index * trial, sides.image, num_images), count.astype(np.float64))
        metrics = [SET_JACCARD.raw(whole, count)]
        nulls = strata(
            sides.image,
            sides.place,
            num_places=num_places,
            aligned=aligned,
            label=columns["label"] if self._class_null else None,
            token=columns.get(TOKEN_ID),
        )
        # A prefix token has no other in its image.
        tokens = tokens_of(columns, sides.image, sides.place, aligned=aligned) if num_places > 1 else None
        if sides.chosen is not None:
            alike = jaccard(*sides.chosen, num_experts=num_experts(columns))
            trials = Trials(sides.image, alike, num_images=num_images)
            metrics += against_chance(SET_JACCARD, trials, nulls, tokens=tokens)
        else:
            metrics += _of_any_size(sides, nulls, tokens)
        if "unserved_both" in columns:
            pairs = columns["set_pairs"]
            share = Share(columns["unserved_both"].astype(np.float64), pairs.astype(np.float64))
            metrics.append(UNSERVED_BOTH.raw(share, pairs))
        return metrics


@dataclass(frozen=True)
class _Sides:
    """The pairs of tokens of some images, M of them, and their sets of experts.

    Attributes:
        image: ``(M,)`` image of each pair.
        place: ``(M,)`` its place among the image's pairs.
        sets: of either side ``(M, E)``, zeros and ones; None where ``chosen`` says it.
        chosen: the experts of either side ``(M, K)`` where all tokens have the same few; else None.
        index: ``(M,)`` their Jaccard index.
        trial: ``(M,)`` whether at least one is not empty.
        num_images: n.
        num_places: pairs of an image.
    """

    image: NDArray[np.int64]
    place: NDArray[np.int64]
    sets: tuple[NDArray[np.generic], NDArray[np.generic]] | None
    chosen: tuple[NDArray[np.generic], NDArray[np.generic]] | None
    index: Array
    trial: NDArray[np.bool_]
    num_images: int
    num_places: int


def _of_choices(columns: Columns) -> _Sides:
    """Return the sets of what tokens chose."""
    reference, view = (columns[f"{side}_selected"] for side in ("reference", "view"))
    image, place = np.nonzero(reference[..., 0] != NO_PAIR)
    chosen = tuple(side[image, place].astype(np.int64) for side in (reference, view))
    size = reference.shape[2]
    if size <= _FEW and all((side >= 0).all() for side in chosen):
        common = (chosen[0][:, :, None] == chosen[1][:, None]).sum((1, 2))
        every = np.ones(len(image), dtype=bool)
        return _Sides(
            image,
            place,
            None,
            (chosen[0], chosen[1]),
            common / (2 * size - common),
            every,
            *reference.shape[:2],
        )
    experts = num_experts(columns)
    sets = []
    for side in chosen:
        # One column more, for choices of nothing.
        members = np.zeros((len(side), experts + 1))
        np.put_along_axis(members, side, 1, axis=1)
        sets.append(members[:, :experts])
    return _of_sets(image, place, sets[0], sets[1], *reference.shape[:2])


def _of_words(columns: Columns) -> _Sides:
    """Return the sets that are kept as bits."""
    first = columns["reference_set_0"].astype(np.int64)
    image, place = np.nonzero(first >= 0)
    words = sum(name.startswith("view_set_") for name in columns)
    sides = [
        _unpack(np.stack([columns[f"{side}_set_{word}"][image, place] for word in range(words)], axis=1))
        for side in ("reference", "view")
    ]
    return _of_sets(image, place, sides[0], sides[1], *first.shape)


def _of_sets(
    image: NDArray[np.int64],
    place: NDArray[np.int64],
    reference: Array,
    view: Array,
    num_images: int,
    num_places: int,
) -> _Sides:
    # Experts that no set holds say nothing.
    held = reference.any(0) | view.any(0)
    sets = reference[:, held], view[:, held]
    return _Sides(
        image,
        place,
        sets,
        None,
        jaccard_of_pairs(*sets),
        (sets[0] + sets[1]).sum(1) > 0,
        num_images,
        num_places,
    )


def _of_any_size(sides: _Sides, nulls: dict[str, Strata], tokens: Tokens | None) -> list[Estimator]:
    """Return chance and kappa of sets of any size, for each null and within images."""
    assert sides.sets is not None
    rows = np.concatenate(sides.sets)
    sets, number = np.unique(rows, axis=0, return_inverse=True)
    reference, view = number.reshape(2, -1)

    def match(which: NDArray[np.bool_]) -> tuple[Share, NDArray[np.int64]]:
        count = np.bincount(sides.image[which & sides.trial], minlength=sides.num_images)
        total = per_image(sides.index[which], sides.image[which], sides.num_images)
        return Share(total, count.astype(np.float64)), count

    metrics: list[Estimator] = []
    for null, divided in nulls.items():
        several = used(divided, sides.image)
        chance = SetChance(
            image=sides.image[several],
            reference=reference[several],
            view=view[several],
            sets=sets,
            stratum=divided.number[several],
            num_images=sides.num_images,
        )
        metrics += SET_JACCARD.chance_and_kappa(null, chance, *match(several))
    if tokens is not None:
        inside, present = set_chance_within_image(
            image=sides.image,
            reference=reference,
            view=view,
            sets=sets,
            tokens=tokens,
            num_images=sides.num_images,
        )
        metrics += SET_JACCARD.chance_and_kappa("image", inside, *match(present[sides.image]))
    return metrics


def _count(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    columns = {"set_pairs": paired.present.sum(1)} | numbers(pair, paired)
    if pair.view.tokens_choose:
        return columns | choices(pair, paired)
    sides = {
        "reference": take_tokens(pair.reference.selected_mask, paired.reference),
        "view": take_tokens(pair.view.selected_mask, paired.view),
    }
    neither = ~sides["reference"].any(-1) & ~sides["view"].any(-1)
    columns["unserved_both"] = (neither & paired.present).sum(1)
    for side, member in sides.items():
        for word, packed in enumerate(_pack(member)):
            columns[f"{side}_set_{word}"] = packed.masked_fill(~paired.present, -1)
    return columns


def _pack(member: Tensor) -> list[Tensor]:
    """Return sets ``(B, J, E)`` as bits, in as many int32 words ``(B, J)`` as they take."""
    import torch

    powers = 2 ** torch.arange(_BITS, device=member.device)
    return [
        (part.long() * powers[: part.shape[-1]]).sum(-1).to(torch.int32)
        for part in member.split(_BITS, dim=-1)
    ]


def _unpack(rows: NDArray[np.generic]) -> Array:
    """Return the sets ``(M, E)`` of rows of words ``(M, W)``, as ones and zeros."""
    bits = rows.astype(np.int64)[:, :, None] >> np.arange(_BITS) & 1
    return bits.reshape(len(rows), rows.shape[1] * _BITS).astype(np.float64)
