"""Intervals of shares: means over images of values between 0 and 1.

Near 0 and 1 a bootstrap cannot look beyond the sample: where all images are right, so is every resample.
Wilson's score interval asks which true shares are compatible with the sample, and keeps a width there.

Sources: Wilson 1927; an effective number of observations in its place where they cluster, and t for normal tails, Korn
and Graubard 1998, Dean and Pagano 2015; t widened percentiles, Hesterberg 2015.
"""

import functools

import numpy as np

CONFIDENCE = 0.95
# Shares this close to 0 or 1 are 0 or 1: the rest is the rounding of their sums.
_ROUNDING = 1e-9


def score_interval(
    share: float,
    error: float,
    images: int,
    *,
    confidence: float = CONFIDENCE,
    observations: float | None = None,
) -> tuple[float, float]:
    """Return Wilson's interval of a share with a standard error over ``images``.

    As many independent observations as would have this error, share (1 − share) / error², take the place of n. Where
    the share is 0 or 1, which says nothing of how images vary, it is ``observations``; None = all images, and no more.

    None of ten images, where t with 9 degrees of freedom is 2.262: from 0 to 2.262² / (10 + 2.262²):

    >>> from moeprobe.metrics.stats.proportions import score_interval
    >>> low, high = score_interval(0.0, error=0.0, images=10)
    >>> low, round(high, 2)
    (0.0, 0.34)
    """
    share = min(max(share, 0.0), 1.0)
    number = float(images) if observations is None else observations
    if _ROUNDING < share < 1 - _ROUNDING:
        if error == 0:
            return share, share
        number = share * (1 - share) / error**2
    else:
        share = float(round(share))
    reach = critical(images, confidence=confidence) ** 2 / number
    middle, half = share + reach / 2, np.sqrt(reach * (share * (1 - share) + reach / 4))
    low, high = (middle - half) / (1 + reach), (middle + half) / (1 + reach)
    # Exactly the share at its own end, whatever the root was rounded to.
    return max(float(min(low, share)), 0.0), min(float(max(high, share)), 1.0)


@functools.cache
def critical(images: int, *, confidence: float = CONFIDENCE) -> float:
    """Return the quantile of t with images − 1 degrees of freedom that leaves out half of the rest on either side.

    >>> from moeprobe.metrics.stats.proportions import critical
    >>> round(critical(10), 3), round(critical(10_000), 2)
    (2.262, 1.96)
    """
    from scipy import special  # here, since runs are checked without; a fraction of scipy.stats

    return float(-special.stdtrit(images - 1, (1 - confidence) / 2))


@functools.cache
def tail(images: int, *, confidence: float = CONFIDENCE) -> float:
    """Return the share of resamples beyond either end of a percentile interval.

    Less than half of the rest: resamples of few images vary by the root of 1 − 1 / n too little, and have normal tails.
    """
    from scipy import special

    return float(special.ndtr(-critical(images, confidence=confidence) / np.sqrt(1 - 1 / images)))


def unseen(observations: float, critical_value: float) -> float:
    """Return the largest share that so many observations without a single one do not exclude.

    Ten observations without a single one: 1.96² / (10 + 1.96²):

    >>> from moeprobe.metrics.stats.proportions import unseen
    >>> round(unseen(10, 1.96), 3)
    0.278
    """
    return critical_value**2 / (observations + critical_value**2)
