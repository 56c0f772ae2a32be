"""How many images a claim takes, by the standard errors that a finished run has.

A standard error falls with the root of the number of images, so the errors of a run tell those of a larger one. The
factor c of its family (``families.DifferenceFamily``) is taken to stay as it is.

Sources: sample sizes for equivalence and superiority, Chow, Shao, Wang and Lokhnygina 2018, chapter 3.
"""

import math

from scipy import special

from moeprobe.metrics.stats.families import POWER


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
        images: n₀, those of the run.
        factor: c, the half of the interval in standard errors.
        error: SE₀, the standard error in the run.
        within: x, the margin of equivalence, in the unit of the error.
        power: how often so many images are to show it.
    """
    quantile = float(special.ndtri((1 + power) / 2))
    return math.ceil(images * ((factor + quantile) * error / within) ** 2)
