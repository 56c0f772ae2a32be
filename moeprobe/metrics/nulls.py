"""What chance is drawn from: the nulls of all analyses that say how often two sides agree.

Axes: M trials (pairs of tokens), n images of a whole run.
"""

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns
from moeprobe.metrics.declaration import Estimator, Metric
from moeprobe.metrics.stats.chance.levels import Chance, Matched
from moeprobe.metrics.stats.chance.trials import STRATA, Strata, Tokens, Trials, undivided, within_image
from moeprobe.metrics.stats.statistic import Integers, Share


def strata(
    image: Integers,
    position: Integers,
    *,
    num_places: int,
    aligned: bool,
    label: NDArray[np.generic] | None,
    token: NDArray[np.generic] | None = None,
) -> dict[str, Strata]:
    """Return for each null between images the strata that a trial's chance is drawn from.

    Args:
        image: ``(M,)`` image of each trial.
        position: ``(M,)`` its place among the image's pairs; where the grid does not move, the patch position.
        num_places: number of places.
        aligned: the grid does not move.
        label: ``(n,)`` class of each image; None = no class null.
        token: ``(n, J)`` token id at each place, -1 = not known; None = no null by token.
    """
    nulls = {"pooled": undivided(len(position))}
    if aligned:
        nulls["position"] = Strata(position, size=max(num_places, 1), single=True)
    if label is not None:
        of_class = label.astype(np.int64)[image]
        # Images without a label are one class.
        of_class = np.where(of_class < 0, STRATA // max(num_places, 1) - 1, of_class)
        nulls["class"] = (
            Strata(of_class * num_places + position, single=True) if aligned else Strata(of_class)
        )
    if token is not None:
        token_id = token[image, position].astype(np.int64)
        # Tokens that are not known are one.
        nulls["token"] = Strata(np.where((token_id < 0) | (token_id >= STRATA - 1), STRATA - 1, token_id))
    return nulls


def tokens_of(columns: Columns, image: Integers, position: Integers, *, aligned: bool) -> Tokens | None:
    """Return which tokens trials ``(M,)`` are of; None where a grid moved and the run does not say (older ones).

    ``columns`` as from ``token_kinds.numbers``.
    """
    if "reference_token" in columns:
        reference, view = (
            columns[f"{side}_token"][image, position].astype(np.int64) for side in ("reference", "view")
        )
        return reference, view
    return (position, position) if aligned or "unmoved" in columns else None


def against_chance(
    metric: Metric, trials: Trials, nulls: dict[str, Strata], *, tokens: Tokens | None
) -> list[Estimator]:
    """Return chance and kappa of how alike two sides are, for each null and within images.

    Args:
        metric: what that is called.
        trials: pairs of tokens.
        nulls: between images, as from ``strata``.
        tokens: of the trials; None = there is no null within images.
    """
    estimators: list[Estimator] = []
    for null, divided in nulls.items():
        chance = Chance(trials, divided)
        matched = Matched(chance)
        estimators += metric.chance_and_kappa(null, chance, matched, matched.counted_trials())
    if tokens is not None:
        inside = within_image(trials, tokens)
        several = inside.denominator > 0
        number = trials.number * several
        match = Share(trials.hits_of_image * several, number.astype(np.float64))
        estimators += metric.chance_and_kappa("image", inside, match, number)
    return estimators


def has_another_image(stratum: Strata, image: Integers) -> NDArray[np.bool_]:
    """Return which trials ``(M,)`` have another image in their stratum."""
    different, number = np.unique(stratum.number, return_inverse=True)
    last_image = np.full(len(different), -1)
    last_image[number] = image
    several = np.zeros(len(different), dtype=bool)
    several[number[image != last_image[number]]] = True
    return several[number]
