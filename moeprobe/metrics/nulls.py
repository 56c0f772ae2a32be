"""What chance is drawn from: the nulls of all analyses that say how often two sides agree.

Axes: M trials (pairs of tokens), n images of a whole run.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, compute_once, image_cache
from moeprobe.metrics.declaration import Estimator, Metric
from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.matched import Matched
from moeprobe.metrics.stats.chance.sampled import Sets, of_choices
from moeprobe.metrics.stats.chance.strata import STRATA, Strata, single_stratum
from moeprobe.metrics.stats.chance.trials import Tokens, Trials, within_image
from moeprobe.metrics.stats.statistic import Integers, Share, Statistic
from moeprobe.metrics.token_kinds import EXPERTS, TOKEN_ID, num_experts


@dataclass(frozen=True)
class Nulls:
    """What chance is drawn from.

    Attributes:
        between: the strata that a trial's chance is drawn from, for each null between images.
        tokens: of the trials; None = there is no null within images.
    """

    between: dict[str, Strata]
    tokens: Tokens | None

    @classmethod
    def of(
        cls,
        columns: Columns,
        image: Integers,
        position: Integers,
        *,
        num_places: int,
        aligned: bool,
        class_null: bool,
    ) -> "Nulls":
        """Return the nulls of trials.

        Args:
            columns: as from ``token_kinds.numbers``.
            image: ``(M,)`` image of each trial.
            position: ``(M,)`` its place among the image's pairs; where the grid does not move, the patch position.
            num_places: number of places.
            aligned: the grid does not move.
            class_null: with a null by class.
        """
        between = {"pooled": single_stratum(len(position))}
        if aligned:
            between["position"] = Strata(position, size=max(num_places, 1), single=True)
        if class_null:
            of_class = columns["label"].astype(np.int64)[image]
            # Images without a label are one class.
            of_class = np.where(of_class < 0, STRATA // max(num_places, 1) - 1, of_class)
            between["class"] = (
                Strata(of_class * num_places + position, single=True) if aligned else Strata(of_class)
            )
        if TOKEN_ID in columns:
            token_id = columns[TOKEN_ID][image, position].astype(np.int64)
            # Tokens that are not known are one.
            between["token"] = Strata(
                np.where((token_id < 0) | (token_id >= STRATA - 1), STRATA - 1, token_id)
            )
        # A prefix token has no other in its image.
        tokens = _tokens(columns, image, position, aligned=aligned) if num_places > 1 else None
        return cls(between, tokens)


def _tokens(columns: Columns, image: Integers, position: Integers, *, aligned: bool) -> Tokens | None:
    """Return which tokens trials ``(M,)`` are of; None where a grid moved and the run does not say (older ones)."""
    if "reference_token" in columns:
        reference, view = (
            columns[f"{side}_token"][image, position].astype(np.int64) for side in ("reference", "view")
        )
        return reference, view
    return (position, position) if aligned or "unmoved" in columns else None


@dataclass(frozen=True)
class Level:
    """A chance level between images or within them, and the match over the same trials."""

    null: str
    chance: Statistic
    match: Statistic
    # ``(n,)``; None = the level counts them.
    trials: NDArray[np.generic] | None


def levels(trials: Trials, nulls: Nulls) -> list[Level]:
    """Return how alike the two sides of trials would be by chance, for each null and within images."""
    of_nulls = []
    tokens = nulls.tokens
    for null, divided in nulls.between.items():
        chance = Chance(trials, divided)
        of_nulls.append(Level(null, chance, Matched(chance), None))
    if tokens is not None:
        inside = trials.cache.once("inside", lambda: within_image(trials, tokens))
        several = inside.denominator > 0
        number = trials.number * several
        match = Share(trials.hits_of_image * several, number.astype(np.float64))
        of_nulls.append(Level("image", inside, match, number))
    return of_nulls


def against_chance(metric: Metric, of_nulls: list[Level]) -> list[Estimator]:
    """Return chance and kappa of a metric at each level."""
    return [
        estimator
        for level in of_nulls
        for estimator in metric.chance_and_kappa(level.null, level.chance, level.match, level.trials)
    ]


def places_of(present: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Return image and position of the pairs of tokens ``(n, J)`` that are there; they are not to be changed."""
    if not present.all():
        image, position = np.nonzero(present)
        return image, position
    return _all_places(*present.shape)


# Two, since the last block of a file is shorter than the others.
@lru_cache(maxsize=2)
def _all_places(num_images: int, num_places: int) -> tuple[Integers, Integers]:
    image, position = np.divmod(np.arange(num_images * num_places), num_places)
    for numbers in (image, position):
        numbers.flags.writeable = False
    return image, position


@dataclass(frozen=True)
class ChosenPairs:
    """The pairs of tokens of some images that have a first expert on both sides, M of them.

    Attributes:
        image: ``(M,)`` image of each pair, ascending.
        position: ``(M,)`` its index among the image's pairs.
        sides: ``(M, K)`` what the reference's token chose and what the view's did.
        nulls: what the chance that they agree is drawn from.
        num_images: n.
    """

    image: Integers
    position: Integers
    sides: tuple[NDArray[np.generic], NDArray[np.generic]]
    nulls: Nulls
    num_images: int

    @classmethod
    def of(cls, columns: Columns, *, aligned: bool, class_null: bool) -> "ChosenPairs":
        """Return the pairs of columns as from ``token_kinds.choices``."""
        choices: list[NDArray[Any]] = [columns[f"{side}_selected"] for side in ("reference", "view")]
        reference, view = choices
        num_images, num_places, top_k = reference.shape
        present = (reference[..., 0] >= 0) & (view[..., 0] >= 0)
        image, position = places_of(present)
        if present.all():
            sides = reference.reshape(-1, top_k), view.reshape(-1, top_k)
        else:
            sides = reference[present], view[present]
        nulls = Nulls.of(
            columns, image, position, num_places=num_places, aligned=aligned, class_null=class_null
        )
        return cls(image, position, sides, nulls, num_images)


def choices_of(columns: Columns, *, aligned: bool, class_null: bool) -> ChosenPairs:
    """Return ``ChosenPairs.of`` the columns, the same for all analyses."""
    return compute_once(
        columns,
        ("choices", aligned, class_null),
        lambda: ChosenPairs.of(columns, aligned=aligned, class_null=class_null),
    )


def chosen_sets(columns: Columns) -> tuple[Sets, Sets]:
    """Return the sets that the pairs of all places chose, those without a choice too, the same for all analyses."""

    def compute() -> tuple[Sets, Sets]:
        choices: list[NDArray[Any]] = [columns[f"{side}_selected"] for side in ("reference", "view")]
        # Older runs do not say how many experts there are.
        number = (
            num_experts(columns)
            if EXPERTS in columns
            else max(int(side.max(initial=0)) for side in choices) + 1
        )
        reference, view = (of_choices(side.reshape(-1, side.shape[-1]), number) for side in choices)
        return reference, view

    return compute_once(columns, "sets", compute)


def first_choices(columns: Columns, *, aligned: bool, class_null: bool) -> tuple[Trials, list[Level]]:
    """Return whether first experts are the same, and how often by chance; the same for all analyses."""

    def compute() -> tuple[Trials, list[Level]]:
        pairs = choices_of(columns, aligned=aligned, class_null=class_null)
        codes = [side[:, 0].astype(np.int64) for side in pairs.sides]
        trials = Trials(
            pairs.image,
            same(*codes, size=num_experts(columns)),
            num_images=pairs.num_images,
            cache=image_cache(columns, ("first", aligned, class_null)),
        )
        return trials, levels(trials, pairs.nulls)

    return compute_once(columns, ("first", aligned, class_null), compute)


def has_another_image(stratum: Strata, image: Integers) -> NDArray[np.bool_]:
    """Return which trials ``(M,)``, whose images ascend, have another image in their stratum."""
    number, size = stratum.number, stratum.size
    if size > len(image):
        different, number = np.unique(number, return_inverse=True)
        size = len(different)
    first, last = np.full(size, -1), np.full(size, -1)
    # Assignment by index keeps the last trial of a stratum; in reversed order, the first.
    last[number] = image
    first[number[::-1]] = image[::-1]
    several: NDArray[np.bool_] = (first != last)[number]
    return several
