"""How many images a claim takes, by the standard errors that a finished run has.

A standard error falls with the root of the number of images, so a run tells the errors of a larger one. The
factor c of its family (``families.DifferenceFamily``) is taken to stay as it is.

Sources: sample sizes for equivalence and superiority, Chow, Shao, Wang and Lokhnygina 2018, chapter 3; the upper limit
of a pilot's variance in the place of its estimate, Browne 1995.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy import special

from moeprobe.metrics.stats.families import POWER
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.two_way import TwoWay

# How often a planned number has its power: the error of a pilot is itself an estimate, and half of them are too small.
ASSURANCE = 0.8
# More images, or pairs of trainings, than anybody has.
_MOST_IMAGES, _MOST_PAIRS = 10**9, 10**4
# Numbers of images that are tried below a given one, each a twentieth larger than the one before.
_NUMBERS_TRIED = np.geomspace(2, _MOST_IMAGES, round(math.log(_MOST_IMAGES / 2) / math.log(1.05)))


def images_needed(
    images: int,
    *,
    factor: float,
    error: float,
    size: float,
    power: float = POWER,
    both_ends: bool = False,
    assurance: float | None = ASSURANCE,
) -> int:
    """Return how many images show a claim about a difference, with probability ``power``.

    n₀ ((c + z) SE / x)², with z the quantile of a normal distribution at ``power``. SE is the upper limit of the
    pilot's error: SE₀ times the root of (n₀ − 1) / χ², with χ² the 1 − ``assurance`` quantile at n₀ − 1 degrees of
    freedom. So ``assurance`` of all pilots plan enough images, in the place of half of them.

    A difference of 0.02 that the interval is to exclude from 0, and one of 0 whose interval is to lie inside of ± 0.02.
    There z is the (1 + power) / 2 quantile, 1.282 at 80 %:

    >>> from moeprobe.metrics.stats.planning import images_needed
    >>> images_needed(100, factor=1.96, error=0.01, size=0.02)
    224
    >>> images_needed(100, factor=1.96, error=0.01, size=0.02, both_ends=True, assurance=None)
    263

    Args:
        images: n₀, of the run.
        factor: c, the half of the interval in standard errors.
        error: SE₀, the standard error in the run.
        size: x, the true difference, or the margin of equivalence, in the unit of the error.
        power: how often so many images are to show it.
        both_ends: whether both ends of the interval have to be inside of ± x, as for equivalence; else one end has to
            exclude 0.
        assurance: how often a run like this one plans enough images; None = the error is taken as it is.
    """
    widening = 1.0 if assurance is None else variance_limit(images - 1, assurance)
    quantile = float(special.ndtri((1 + power) / 2 if both_ends else power))
    return math.ceil(images * widening * ((factor + quantile) * error / size) ** 2)


def variance_limit(freedom: float, assurance: float = ASSURANCE) -> float:
    """Return by how much the upper limit of a variance exceeds its estimate with so many degrees of freedom."""
    # scipy's quantile is that of the upper tail.
    return freedom / float(special.chdtri(freedom, assurance))


def upper_limits(estimate: TwoWay, pairs: int, images: int, *, assurance: float = ASSURANCE) -> TwoWay:
    """Return an estimate with the upper limits of its spreads, of so many pairs of trainings and images."""
    of_pairs, of_images = (variance_limit(number - 1, assurance) ** 0.5 for number in (pairs, images))
    return replace(
        estimate,
        spread=estimate.spread * of_pairs,
        image_spread=estimate.image_spread * of_images,
        residual_spread=estimate.residual_spread * of_images,
    )


def detectable(
    estimate: TwoWay, pairs: int, images: float, *, confidence: float = CONFIDENCE, power: float = POWER
) -> float:
    """Return the least true difference that so many pairs of trainings and images show with probability ``power``.

    (t_c + t_z) · error, both quantiles of t with the degrees of freedom that the error will have (``TwoWay.planned``).
    More images make the error smaller, and leave it with the degrees of freedom of the few trainings; from some number
    on, the second outweighs the first. Whoever has more images may use as many as show most, so the result is the
    least of all numbers up to ``images``.

    Images do not replace trainings. Three pairs that differ by a standard deviation of 0.02 show 0.062, at best:

    >>> from math import inf
    >>> from moeprobe.metrics.stats.two_way import TwoWay
    >>> from moeprobe.metrics.stats.planning import detectable
    >>> estimate = TwoWay(0.0, 0.0, 2.0, spread=0.02, residual_spread=0.2)
    >>> [round(detectable(estimate, pairs, images), 3) for pairs, images in ((3, 500), (3, inf), (12, 500))]
    [0.068, 0.062, 0.019]
    """
    numbers = np.append(_NUMBERS_TRIED[images > _NUMBERS_TRIED], images)
    planned = [estimate.planned(pairs, number) for number in numbers.tolist()]
    freedom, error = np.array([[each.freedom, each.error] for each in planned]).T
    critical = -special.stdtrit(freedom, (1 - confidence) / 2)
    return float(((critical + special.stdtrit(freedom, power)) * error).min())


def pairs_to_detect(
    estimate: TwoWay, images: float, difference: float, *, confidence: float, power: float
) -> int | None:
    """Return how many pairs of trainings show a difference with so many images; None where no number does."""
    return _least(
        lambda pairs: detectable(estimate, pairs, images, confidence=confidence, power=power) <= difference,
        _MOST_PAIRS,
    )


def images_with_pairs(
    estimate: TwoWay, pairs: int, difference: float, *, confidence: float, power: float
) -> int | None:
    """Return how many images show a difference with so many pairs of trainings; None where no number does."""
    return _least(
        lambda images: detectable(estimate, pairs, images, confidence=confidence, power=power) <= difference,
        _MOST_IMAGES,
    )


def _least(is_enough: Callable[[int], bool], limit: int) -> int | None:
    """Return the least number from 2 on that is enough, of which all larger ones are; None above ``limit``."""
    low, high = 1, 2
    while not is_enough(high):
        low, high = high, high * 2
        if high > limit:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
