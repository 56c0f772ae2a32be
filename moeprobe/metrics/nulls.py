"""What chance is drawn from: the nulls of all analyses that say how often two sides agree.

Axes: M trials (pairs of tokens), n images of a whole run.
"""

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns
from moeprobe.metrics.declaration import Estimator, Metric
from moeprobe.metrics.stats.bootstrap import Share, Statistic
from moeprobe.metrics.stats.chance import Chance
from moeprobe.metrics.stats.within_image import Tokens, chance_within_image

Whole = NDArray[np.int64]


def strata(
    image: Whole, place: Whole, *, num_places: int, aligned: bool, label: NDArray[np.generic] | None
) -> dict[str, Whole]:
    """Return for each null between images the stratum ``(M,)`` that a trial's chance is drawn from.

    Args:
        image: ``(M,)`` image of each trial.
        place: ``(M,)`` its place among the image's pairs; where the grid does not move, the patch position.
        num_places: number of places.
        aligned: the grid does not move.
        label: ``(n,)`` class of each image; None = no class null.
    """
    found = {"pooled": np.zeros_like(place)} | ({"position": place} if aligned else {})
    if label is not None:
        of_class = label.astype(np.int64)[image]
        found["class"] = of_class * num_places + place if aligned else of_class
    return found


def tokens_of(columns: Columns, image: Whole, place: Whole, *, aligned: bool) -> Tokens | None:
    """Return which tokens trials ``(M,)`` are of; None where a grid moved and the run does not say (older ones).

    ``columns`` as from ``_pairs.numbers``.
    """
    if "reference_token" in columns:
        own, partner = (
            columns[f"{side}_token"][image, place].astype(np.int64) for side in ("reference", "view")
        )
        return own, partner
    return (place, place) if aligned or "unmoved" in columns else None


def used(stratum: Whole, image: Whole) -> NDArray[np.bool_]:
    """Return which trials ``(M,)`` have a chance level: elsewhere there is no other image in the stratum."""
    different, number = np.unique(stratum, return_inverse=True)
    one = np.full(len(different), -1)
    one[number] = image
    several = np.zeros(len(different), dtype=bool)
    several[number[image != one[number]]] = True
    return several[number]


def same_code(
    metric: Metric,
    codes: Whole,
    image: Whole,
    nulls: dict[str, Whole],
    *,
    num_images: int,
    tokens: Tokens | None,
) -> list[Estimator]:
    """Return chance and kappa of how often two sides have the same code ``(2, M)``, for each null and within images.

    Without ``tokens`` there is no null within images.
    """
    found: list[Estimator] = []
    for null, stratum in nulls.items():
        here = used(stratum, image)
        chance = Chance(
            image=image[here],
            reference=codes[0][here],
            view=codes[1][here],
            stratum=stratum[here],
            num_images=num_images,
        )
        found += _same(metric, null, chance, codes[:, here], image[here], num_images)
    if tokens is not None:
        inside = chance_within_image(
            image=image, reference=codes[0], view=codes[1], tokens=tokens, num_images=num_images
        )
        several = (inside.denominator > 0)[image]
        found += _same(metric, "image", inside, codes[:, several], image[several], num_images)
    return found


def _same(
    metric: Metric, null: str, chance: Statistic, codes: Whole, image: Whole, num_images: int
) -> list[Estimator]:
    count = np.bincount(image, minlength=num_images)
    hits = np.bincount(image[codes[0] == codes[1]], minlength=num_images)
    match = Share(hits.astype(np.float64), count.astype(np.float64))
    return metric.chance_and_kappa(null, chance, match, count)


def with_others(trials: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the trials ``(n,)`` that another image is there to be chance with: none of a single image."""
    return trials if np.count_nonzero(trials) > 1 else np.zeros_like(trials)
