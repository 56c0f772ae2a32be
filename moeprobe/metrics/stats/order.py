"""Quantiles over sampled units, with intervals that need no shape of the distribution.

The number of n independent values at or below a quantile is binomial. So two ordered values hold the quantile between
them with the probability that a binomial number falls between their ranks. Where no pair has enough, there is no
interval, as for the 99 % quantile of fewer than 368 values. Ties make an interval hold the truth more often, never
less.

Sources: intervals by order statistics, David and Nagaraja 2003 (section 7.1).
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.statistic import Array


@dataclass(frozen=True)
class Quantile:
    """A quantile with its interval; NaN where there is none."""

    value: float
    low: float
    high: float


def quantile(values: Array, share: float) -> Quantile:
    """Return the least of the values ``(n,)`` that at least a ``share`` of them do not exceed, with its interval.

    Of the numbers 1 to 100 the median is 50; 40 and 61 have ranks that a binomial number of 100 · 0.5 leaves on either
    side in at most 2.5 %:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.order import quantile
    >>> quantile(np.arange(1.0, 101.0), 0.5)
    Quantile(value=50.0, low=40.0, high=61.0)
    """
    ordered, n = np.sort(values), len(values)
    value = float(ordered[max(int(np.ceil(share * n - 1e-9)), 1) - 1])
    ranks = _ranks(n, share)
    if ranks is None or n < MIN_IMAGES:
        return Quantile(value, np.nan, np.nan)
    return Quantile(value, float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1]))


def fewest(share: float) -> int:
    """Return with how many values a quantile has an interval.

    >>> from moeprobe.metrics.stats.order import fewest
    >>> fewest(0.5), fewest(0.9), fewest(0.99)
    (20, 36, 368)
    """
    missed = (1 - CONFIDENCE) / 2
    extreme = max(share, 1 - share)
    return max(MIN_IMAGES, int(np.ceil(np.log(missed) / np.log(extreme))))


def _ranks(n: int, share: float) -> tuple[int, int] | None:
    """Return the ranks of the two values, from 1; None where no values are far enough out."""
    from scipy import special  # here, since runs are checked without

    missed = (1 - CONFIDENCE) / 2
    # P(B < r) for the binomial number B of values at or below the quantile, r = 1 … n + 1.
    cumulative = special.bdtr(np.arange(n + 1), n, share)
    # The lower value exceeds the quantile where B < its rank, the upper one is below it where B ≥ its rank.
    lower = np.flatnonzero(cumulative <= missed)
    upper = np.flatnonzero(cumulative >= 1 - missed)
    if not len(lower) or not len(upper) or upper[0] + 1 > n:
        return None
    return int(lower[-1]) + 1, int(upper[0]) + 1
