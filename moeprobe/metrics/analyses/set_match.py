"""Are corresponding tokens with the same experts? The Jaccard index of the two sets: one axis for all hard routers.

J = |S ∩ T| / |S ∪ T| of the experts that have a token in the reference and in the view: 1 = the same experts, 0 = none
in common. It asks for no K, so it holds where experts choose and a token has any number of them. Where tokens choose,
the set is what they chose, before capacity ("chose another" and "was dropped" stay apart); where experts choose, what
was chosen found room.

Two empty sets are no trial: a token that nobody takes on either side has not kept its experts. Their share of all pairs
is ``unserved_both``, given where experts choose. Each J comes with its chance level, as in ``match``; chance
is drawn from all pairs of tokens, and a draw of two empty sets is no trial either.

The columns keep the tokens' choices, as in ``match``, and where experts choose, each pair's sets as bits (4 bytes
per token and 31 experts): the intervals of chance need them.

Axes: B images, J pairs of tokens, M pairs of tokens of some images, E experts, K of a token, n images of a whole run,
W words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.nulls import against_chance, has_another_image, strata, tokens_of
from moeprobe.metrics.stats.alike import jaccard, jaccard_of_choices
from moeprobe.metrics.stats.chance.sets import (
    SetChance,
    SubsetChance,
    jaccard_of_pairs,
    set_chance_within_image,
)
from moeprobe.metrics.stats.chance.trials import Strata, Tokens, Trials, per_image
from moeprobe.metrics.stats.statistic import Array, Share
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

    from moeprobe.routing.record import LayerPair, LayerRouting


# Bits of an int32 without its sign: -1 is "no pair".
_BITS = 31
# Choices of a token up to which the subsets of its set are counted, 2**K − 1 each: all at once, or one size at a time.
_FEW = 4
_MORE = 10


@dataclass(frozen=True)
class Sides:
    """The pairs of tokens of some images, M of them, and their sets of experts.

    Attributes:
        image: ``(M,)`` image of each pair.
        position: ``(M,)`` its index among the image's pairs.
        sets: of either side ``(M, E)``, zeros and ones; None where ``choices`` says it all.
        choices: the experts of either side ``(M, K)`` where all tokens have the same number, and no more than
            ``_MORE``; else None.
        index: ``(M,)`` their Jaccard index.
        trial: ``(M,)`` whether at least one is not empty.
        num_images: n.
        num_places: pairs of an image.
    """

    image: NDArray[np.int64]
    position: NDArray[np.int64]
    sets: tuple[NDArray[np.floating], NDArray[np.floating]] | None
    choices: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    index: Array
    trial: NDArray[np.bool_]
    num_images: int
    num_places: int


def of_choices(columns: Columns) -> Sides:
    """Return the sets of what tokens chose."""
    reference, view = (columns[f"{side}_selected"] for side in ("reference", "view"))
    image, position = np.nonzero(reference[..., 0] != NO_PAIR)
    choices = tuple(side[image, position].astype(np.int64) for side in (reference, view))
    size = reference.shape[2]
    complete = all((side >= 0).all() for side in choices)
    if size <= _FEW and complete:
        every = np.ones(len(image), dtype=bool)
        return Sides(
            image,
            position,
            None,
            (choices[0], choices[1]),
            jaccard_of_choices(*choices),
            every,
            *reference.shape[:2],
        )
    experts = num_experts(columns)
    sets = []
    for side in choices:
        # One column more, for choices of nothing.
        members = np.zeros((len(side), experts + 1), dtype=np.float32)
        np.put_along_axis(members, side, 1, axis=1)
        sets.append(members[:, :experts])
    sides = _of_sets(image, position, sets[0], sets[1], *reference.shape[:2])
    return replace(sides, choices=(choices[0], choices[1])) if complete and size <= _MORE else sides


def of_words(columns: Columns) -> Sides:
    """Return the sets that are kept as bits."""
    first = columns["reference_set_0"].astype(np.int64)
    image, position = np.nonzero(first >= 0)
    words = sum(name.startswith("view_set_") for name in columns)
    sides = [
        _unpack(np.stack([columns[f"{side}_set_{word}"][image, position] for word in range(words)], axis=1))
        for side in ("reference", "view")
    ]
    return _of_sets(image, position, sides[0], sides[1], *first.shape)


def _of_sets(
    image: NDArray[np.int64],
    position: NDArray[np.int64],
    reference: NDArray[np.floating],
    view: NDArray[np.floating],
    num_images: int,
    num_places: int,
) -> Sides:
    # Experts that no set holds say nothing.
    occurs = reference.any(0) | view.any(0)
    sets = reference[:, occurs], view[:, occurs]
    return Sides(
        image,
        position,
        sets,
        None,
        jaccard_of_pairs(*sets),
        (sets[0] + sets[1]).sum(1) > 0,
        num_images,
        num_places,
    )


def different(rows: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Return the different sets ``(U, E)`` of rows ``(M, E)`` of zeros and ones, and which of them each row is.

    They come in the order of their rows, as from ``np.unique``. That compares entry by entry; here 64 entries are one
    number, which takes a fraction of the time.
    """
    bits = np.packbits(rows.astype(bool), axis=1)
    padded = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))))
    words = padded.view(">u8").astype(np.uint64)
    keys = words[:, 0] if words.shape[1] == 1 else words
    _, first, number = np.unique(
        keys, axis=0 if keys.ndim > 1 else None, return_index=True, return_inverse=True
    )
    return rows[first], number.reshape(-1)


def pack(member: Tensor) -> list[Tensor]:
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


SET_JACCARD = Metric(
    "set_jaccard",
    about="overlap of the sets of experts of corresponding tokens, intersection over union; where tokens choose, of "
    "their choices before capacity",
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
    about="share of pairs without an expert on either side, which set_jaccard leaves out",
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
        is_sparse = layer.experts_choose or layer.top_k < layer.num_experts
        return layer.top_k > 0 and layer.num_experts > 1 and is_sparse

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the pairs of tokens per image and their sets, for patches (also by region) and prefix tokens."""
        return {tokens: _count(pair, paired) for tokens, paired in by_token_kind(pair).items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the index with chance and kappa, and the share of pairs without an expert."""
        sides = of_choices(columns) if "reference_set_0" not in columns else of_words(columns)
        index, trial = sides.index, sides.trial
        num_images, num_places = sides.num_images, sides.num_places
        count = np.bincount(sides.image[trial], minlength=num_images)
        mean = Share(per_image(index * trial, sides.image, num_images), count.astype(np.float64))
        metrics = [SET_JACCARD.raw(mean, count)]
        nulls = strata(
            sides.image,
            sides.position,
            num_places=num_places,
            aligned=aligned,
            label=columns["label"] if self._class_null else None,
            token=columns.get(TOKEN_ID),
        )
        # A prefix token has no other in its image.
        tokens = tokens_of(columns, sides.image, sides.position, aligned=aligned) if num_places > 1 else None
        if sides.choices is not None and sides.sets is None:
            similarity = jaccard(*sides.choices, num_experts=num_experts(columns))
            trials = Trials(sides.image, similarity, num_images=num_images)
            metrics += against_chance(SET_JACCARD, trials, nulls, tokens=tokens)
        else:
            chance = _by_sets(sides) if sides.choices is None else _by_subsets(sides, num_experts(columns))
            metrics += _against_chance(sides, nulls, tokens, chance)
        if "unserved_both" in columns:
            pairs = columns["set_pairs"]
            share = Share(columns["unserved_both"].astype(np.float64), pairs.astype(np.float64))
            metrics.append(UNSERVED_BOTH.raw(share, pairs))
        return metrics


# From the trials of which to draw, and the stratum of each, to a chance level.
_Chance = Callable[[NDArray[np.bool_], Strata], SetChance | SubsetChance]


def _against_chance(
    sides: Sides, nulls: dict[str, Strata], tokens: Tokens | None, chance: _Chance
) -> list[Estimator]:
    """Return chance and kappa of sets, for each null and within images."""
    assert sides.sets is not None

    def match(which: NDArray[np.bool_]) -> tuple[Share, NDArray[np.int64]]:
        count = np.bincount(sides.image[which & sides.trial], minlength=sides.num_images)
        total = per_image(sides.index[which], sides.image[which], sides.num_images)
        return Share(total, count.astype(np.float64)), count

    metrics: list[Estimator] = []
    for null, divided in nulls.items():
        several = has_another_image(divided, sides.image)
        metrics += SET_JACCARD.chance_and_kappa(null, chance(several, divided.take(several)), *match(several))
    if tokens is not None:
        inside, present = set_chance_within_image(
            image=sides.image,
            reference=sides.sets[0],
            view=sides.sets[1],
            tokens=tokens,
            num_images=sides.num_images,
        )
        metrics += SET_JACCARD.chance_and_kappa("image", inside, *match(present[sides.image]))
    return metrics


def _by_sets(sides: Sides) -> _Chance:
    """Return how to draw from sets of any size."""
    assert sides.sets is not None
    sets, number = different(np.concatenate(sides.sets))
    reference, view = number.reshape(2, -1)

    def chance(which: NDArray[np.bool_], strata: Strata) -> SetChance:
        return SetChance(
            image=sides.image[which],
            reference=reference[which],
            view=view[which],
            sets=sets,
            stratum=strata.number,
            num_images=sides.num_images,
        )

    return chance


def _by_subsets(sides: Sides, num_experts: int) -> _Chance:
    """Return how to draw from sets of the same size."""
    assert sides.choices is not None
    reference, view = sides.choices

    def chance(which: NDArray[np.bool_], strata: Strata) -> SubsetChance:
        return SubsetChance(
            image=sides.image[which],
            reference=reference[which],
            view=view[which],
            strata=strata,
            num_experts=num_experts,
            num_images=sides.num_images,
        )

    return chance


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
        for word, packed in enumerate(pack(member)):
            columns[f"{side}_set_{word}"] = packed.masked_fill(~paired.present, -1)
    return columns
