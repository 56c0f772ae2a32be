"""Chance levels of trials that a test names one by one, and derivatives by the weights of images."""

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.strata import Strata
from moeprobe.metrics.stats.chance.trials import Trials, within_image
from moeprobe.metrics.stats.statistic import Share, Statistic

Whole = NDArray[np.int64]


def chance_of(*, image: Whole, reference: Whole, view: Whole, stratum: Whole, num_images: int) -> Chance:
    """Chance of having the same code; the trials in whatever order."""
    order = np.argsort(image, kind="stable")
    image, reference, view, stratum = (values[order] for values in (image, reference, view, stratum))
    return Chance(Trials(image, same(reference, view), num_images=num_images), Strata(stratum, size=1000))


def chance_within(
    *, image: Whole, reference: Whole, view: Whole, tokens: tuple[Whole, Whole], num_images: int
) -> Share:
    """Chance of having the same code as another trial of the image; the trials in whatever order."""
    order = np.argsort(image, kind="stable")
    image, reference, view, own, partner = (values[order] for values in (image, reference, view, *tokens))
    return within_image(Trials(image, same(reference, view), num_images=num_images), (own, partner))


def derivatives(statistic: Statistic, num_images: int, *, step: float = 1e-5) -> np.ndarray:
    """Return the central difference of a statistic by the weight of each image ``(n,)``."""
    steps = step * np.eye(num_images)
    change = statistic.evaluate(1 + steps) - statistic.evaluate(1 - steps)
    return np.asarray(change / (2 * step))
