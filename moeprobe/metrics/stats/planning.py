"""How many images a claim takes, by the standard errors that a finished run has.

A standard error falls with the root of the number of images, so a run tells the errors of a larger one. The
factor c of its family (``families.DifferenceFamily``) is taken to stay as it is.

Sources: sample sizes for equivalence and superiority, Chow, Shao, Wang and Lokhnygina 2018, chapter 3; the upper limit
of a pilot's variance in the place of its estimate, Browne 1995.
"""

import math

from scipy import special

from moeprobe.metrics.stats.families import POWER

# How often a planned number has its power: the error of a pilot is itself an estimate, and half of them are too small.
ASSURANCE = 0.8


def images_for_equivalence(
    images: int, *, factor: float, error: float, within: float, power: float = POWER
) -> int:
    """Return how many images show a difference of 0 to be inside ± ``within``, with probability ``power``.

    n₀ ((c + z) SE₀ / x)², with z the (1 + power) / 2 quantile of a normal distribution: the interval has to end inside
    of the margin on both sides. At 80 % that is 1.282:

    >>> from moeprobe.metrics.stats.planning import images_for_equivalence
    >>> images_for_equivalence(100, factor=1.96, error=0.01, within=0.02)
    263

    Args:
        images: n₀, of the run.
        factor: c, the half of the interval in standard errors.
        error: SE₀, the standard error in the run.
        within: x, the margin of equivalence, in the unit of the error.
        power: how often so many images are to show it.
    """
    quantile = float(special.ndtri((1 + power) / 2))
    return math.ceil(images * ((factor + quantile) * error / within) ** 2)


def images_to_detect(
    images: int,
    *,
    factor: float,
    error: float,
    difference: float,
    power: float = POWER,
    assurance: float = ASSURANCE,
) -> int:
    """Return how many images show a true ``difference`` to differ from 0, with probability ``power``.

    n₀ ((c + z) SE / d)², with z the quantile of a normal distribution at ``power``. SE is the upper limit of the
    pilot's error: SE₀ times the root of (n₀ − 1) / χ², with χ² the 1 − ``assurance`` quantile at n₀ − 1 degrees of
    freedom. So ``assurance`` of all pilots plan enough images, in the place of half of them:

    >>> from moeprobe.metrics.stats.planning import images_to_detect
    >>> images_to_detect(100, factor=1.96, error=0.01, difference=0.02)
    224

    Args:
        images: n₀, of the run.
        factor: c, the half of the interval in standard errors.
        error: SE₀, the standard error in the run.
        difference: d, in the unit of the error.
        power: how often so many images are to show it.
        assurance: how often a run like this one plans enough images.
    """
    # scipy's quantile is that of the upper tail.
    widening = (images - 1) / float(special.chdtri(images - 1, assurance))
    quantile = float(special.ndtri(power))
    return math.ceil(images * widening * ((factor + quantile) * error / difference) ** 2)
