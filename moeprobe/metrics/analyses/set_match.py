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

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis, image_cache
from moeprobe.metrics.declaration import CHANCE, Metric
from moeprobe.metrics.nulls import (
    Nulls,
    against_chance,
    chosen_sets,
    first_choices,
    has_another_image,
    levels,
    places_of,
)
from moeprobe.metrics.stats.alike import jaccard, jaccard_of_choices
from moeprobe.metrics.stats.chance import sampled
from moeprobe.metrics.stats.chance.sampled import SampledChance, Sets, set_chance_within_image
from moeprobe.metrics.stats.chance.sets import SetChance
from moeprobe.metrics.stats.chance.strata import Strata
from moeprobe.metrics.stats.chance.trials import Trials, per_image
from moeprobe.metrics.stats.statistic import Array, ImageCache, Share
from moeprobe.metrics.token_kinds import (
    NO_PAIR,
    TOKEN_ID,
    Paired,
    by_token_kind,
    choices,
    num_experts,
    numbers,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


# Bits of an int32 without its sign: -1 is "no pair".
_BITS = 31
# Choices of a token up to which the subsets of its set are counted, 2**K − 1 each.
_FEW = 3
# Pairs of tokens up to which all their sets are compared, each with each.
_EXACT = 2**11


@dataclass(frozen=True)
class Sides:
    """The pairs of tokens of some images, M of them, and their sets of experts.

    Attributes:
        image: ``(M,)`` image of each pair.
        position: ``(M,)`` its index among the image's pairs.
        sets: of either side; None where ``choices`` says it all.
        choices: the experts of either side ``(M, K)`` where all tokens have the same number, no more than ``_FEW``;
            else None.
        index: ``(M,)`` their Jaccard index.
        trial: ``(M,)`` whether at least one is not empty.
        num_images: n.
        num_places: pairs of an image.
    """

    image: NDArray[np.int64]
    position: NDArray[np.int64]
    sets: tuple[Sets, Sets] | None
    choices: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    index: Array
    trial: NDArray[np.bool_]
    num_images: int
    num_places: int

    def match(self, which: NDArray[np.bool_] | None = None) -> tuple[Share, NDArray[np.int64]]:
        """Return the mean index of some of the pairs, None = all, and how many of these each image has ``(n,)``."""
        if which is None or which.all():
            return self._match_of_all
        return self._match(self.trial[which], self.index[which], self.image[which])

    @cached_property
    def _match_of_all(self) -> tuple[Share, NDArray[np.int64]]:
        return self._match(self.trial, self.index, self.image)

    def _match(
        self, trial: NDArray[np.bool_], index: Array, image: NDArray[np.int64]
    ) -> tuple[Share, NDArray[np.int64]]:
        count = np.bincount(image if trial.all() else image[trial], minlength=self.num_images)
        return Share(per_image(index, image, self.num_images), count.astype(np.float64)), count


def of_choices(columns: Columns) -> Sides:
    """Return the sets of what tokens chose."""
    all_choices: list[NDArray[Any]] = [columns[f"{side}_selected"] for side in ("reference", "view")]
    image, position = places_of(all_choices[0][..., 0] != NO_PAIR)
    num_images, num_places, size = all_choices[0].shape
    every = len(image) == num_images * num_places
    reference, view = (side.reshape(-1, size) if every else side[image, position] for side in all_choices)
    if size <= _FEW and all((side >= 0).all() for side in (reference, view)):
        choices = reference.astype(np.int64), view.astype(np.int64)
        trial = np.ones(len(image), dtype=bool)
        return Sides(
            image, position, None, choices, jaccard_of_choices(*choices), trial, num_images, num_places
        )
    sets = chosen_sets(columns)
    if not every:
        sets = sets[0].take(image * num_places + position), sets[1].take(image * num_places + position)
    return _of_sets(image, position, *sets, num_images, num_places)


def of_words(columns: Columns) -> Sides:
    """Return the sets that are kept as bits."""
    first: NDArray[Any] = columns["reference_set_0"]
    image, position = places_of(first >= 0)
    words = sum(name.startswith("view_set_") for name in columns)
    sides = [
        sampled.of_words(
            [columns[f"{side}_set_{word}"][image, position].astype(np.uint64) for word in range(words)]
        )
        for side in ("reference", "view")
    ]
    return _of_sets(image, position, sides[0], sides[1], *first.shape)


def _of_sets(
    image: NDArray[np.int64],
    position: NDArray[np.int64],
    reference: Sets,
    view: Sets,
    num_images: int,
    num_places: int,
) -> Sides:
    index, trial = sampled.jaccard(reference, view), (reference.sizes + view.sizes) > 0
    return Sides(image, position, (reference, view), None, index, trial, num_images, num_places)


def different(words: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows at which different sets ``(W, M)`` first occur, and which of them each is ``(M,)``."""
    keys = words[0] if len(words) == 1 else words.T
    _, first, number = np.unique(
        keys, axis=0 if keys.ndim > 1 else None, return_index=True, return_inverse=True
    )
    return first, number.reshape(-1)


def pack(member: Tensor) -> list[Tensor]:
    """Return sets ``(B, J, E)`` as bits, in as many int32 words ``(B, J)`` as they take."""
    import torch

    powers = 2 ** torch.arange(_BITS, device=member.device)
    return [
        (part.long() * powers[: part.shape[-1]]).sum(-1).to(torch.int32)
        for part in member.split(_BITS, dim=-1)
    ]


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
    """Jaccard index of the sets of experts of corresponding tokens, with its chance level and kappa.

    Two images with one token each. The first keeps its set; of the second {1, 2} becomes {0, 2}, one expert in common
    of three, so the mean is (1 + 1/3) / 2. Sets of different images have one of three in common, which is chance, and
    κ = (2/3 − 1/3) / (1 − 1/3):

    >>> from moeprobe.metrics.analyses.set_match import SetMatch
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(SetMatch(), pair(route([[[0, 1]], [[1, 2]]]), route([[[0, 1]], [[0, 2]]])))
    >>> value["set_jaccard"], value["set_jaccard_chance pooled"], value["set_jaccard_kappa pooled"]
    (0.667, 0.333, 0.5)
    """

    measures = (SET_JACCARD, UNSERVED_BOTH)
    signature = "set_pairs"
    trial_lists = ("reference_set_", "view_set_", "reference_selected", "view_selected", TOKEN_ID)

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    @classmethod
    def facts(cls, table: DataFrame) -> dict[str, str]:
        """Return whether the chance levels in a table are "exact", or some "sampled"; nothing without any."""
        levels = table[table["metric"] == f"{SET_JACCARD.name}{CHANCE}"]
        if levels.empty:
            return {}
        is_large = ~(levels["top_k"] <= _FEW)
        of_image = levels["trials"] > sampled.ALL_WITHIN * levels["images"]
        is_long = (levels["trials"] > _EXACT).where(levels["null"] != "image", of_image)
        return {"chance": "sampled" if (is_large & is_long).any() else "exact"}

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens have some of the experts, and not always all."""
        is_sparse = layer.experts_choose or layer.top_k < layer.num_experts
        return layer.top_k > 0 and layer.num_experts > 1 and is_sparse

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the pairs of tokens per image and their sets, for patches (also by region) and prefix tokens."""
        return {tokens: _count(pair, paired) for tokens, paired in by_token_kind(pair).items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the index with chance and kappa, and the share of pairs without an expert."""
        if _has_one_choice(columns):
            # The index of sets of one is the match of the first experts.
            trials, of_nulls = first_choices(columns, aligned=aligned, class_null=self._class_null)
            if trials.number.sum() == columns["set_pairs"].sum():
                mean = Share(trials.hits_of_image, trials.number.astype(np.float64))
                return [SET_JACCARD.raw(mean, trials.number), *against_chance(SET_JACCARD, of_nulls)]
        sides = of_choices(columns) if "reference_set_0" not in columns else of_words(columns)
        metrics = [SET_JACCARD.raw(*sides.match())]
        cache = image_cache(columns, (SET_JACCARD.name, aligned))
        nulls = Nulls.of(
            columns,
            sides.image,
            sides.position,
            num_places=sides.num_places,
            aligned=aligned,
            class_null=self._class_null,
        )
        if sides.choices is not None:
            similarity = jaccard(*sides.choices, num_experts=num_experts(columns))
            of_sets = Trials(sides.image, similarity, num_images=sides.num_images, cache=cache)
            metrics += against_chance(SET_JACCARD, levels(of_sets, nulls))
        else:
            metrics += _against_chance(sides, nulls, cache)
        if "unserved_both" in columns:
            metrics.append(UNSERVED_BOTH.share_of(columns["unserved_both"], columns["set_pairs"]))
        return metrics


def _has_one_choice(columns: Columns) -> bool:
    return "reference_set_0" not in columns and columns["reference_selected"].shape[-1] == 1


def _against_chance(sides: Sides, nulls: Nulls, cache: ImageCache) -> list[Estimator]:
    """Return chance and kappa of sets, for each null and within images."""
    assert sides.sets is not None

    metrics: list[Estimator] = []
    tokens = nulls.tokens
    for null, divided in nulls.between.items():
        several = has_another_image(divided, sides.image)
        metrics += SET_JACCARD.chance_and_kappa(null, _chance(sides, several, divided), *sides.match(several))
    if tokens is not None:
        reference, view = sides.sets
        inside, present = cache.once(
            "inside",
            lambda: set_chance_within_image(
                image=sides.image,
                reference=reference,
                view=view,
                tokens=tokens,
                num_images=sides.num_images,
            ),
        )
        metrics += SET_JACCARD.chance_and_kappa("image", inside, *sides.match(present[sides.image]))
    return metrics


def _chance(sides: Sides, which: NDArray[np.bool_], strata: Strata) -> SetChance | SampledChance:
    """Return the chance level of some pairs: of all sets with all, or where there are many by drawn ones."""
    assert sides.sets is not None
    image, num_images, (reference, view) = sides.image, sides.num_images, sides.sets
    if not which.all():
        image, strata = image[which], strata.take(which)
        reference, view = reference.take(which), view.take(which)
    if len(image) > _EXACT:
        return SampledChance(
            image=image, reference=reference, view=view, strata=strata, num_images=num_images
        )
    words = np.concatenate([reference.words, view.words], axis=1)
    first, number = different(words)
    return SetChance(
        image=image,
        reference=number[: len(image)],
        view=number[len(image) :],
        sets=sampled.of_words(list(words[:, first])).members(),
        stratum=strata.number,
        num_images=num_images,
    )


def _count(pair: LayerPair, paired: Paired) -> dict[str, Tensor]:
    columns = {"set_pairs": paired.present.sum(1)} | numbers(pair, paired)
    if pair.view.tokens_choose:
        return columns | choices(pair, paired)
    sides = {
        "reference": paired.of_reference(pair.reference.selected_mask),
        "view": paired.of_view(pair.view.selected_mask),
    }
    neither = ~sides["reference"].any(-1) & ~sides["view"].any(-1)
    columns["unserved_both"] = (neither & paired.present).sum(1)
    for side, member in sides.items():
        for word, packed in enumerate(pack(member)):
            columns[f"{side}_set_{word}"] = packed.masked_fill(~paired.present, -1)
    return columns
