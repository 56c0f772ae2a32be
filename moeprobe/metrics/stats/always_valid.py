"""Intervals that hold at all times at once: for numbers that are looked at again with each batch of served requests.

A 95 % interval holds at one time that was decided on beforehand. Whoever looks after every batch, and stops at the
first interval that excludes 0, is wrong far more often. The intervals here hold after every batch at once, so that one
may look as often, and stop when, one likes.

Requests are not independent: those that follow one another are alike. So a batch of them is one observation, and the
correlation of a batch with the next is estimated and widens the interval.

Sources: mixtures of normal distributions, Robbins 1970; confidence sequences, Howard et al. 2021; an unknown variance
by invariance, Lai 1976 and Wang and Ramdas 2023; the variance of a mean of observations that follow one another,
Bartlett 1946; restarts that share a level, Shin, Ramdas and Rinaldo 2024.

Axes: b batches of the baseline, n batches since; any axes before them.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.statistic import Array, Integers

# Variance of true changes in the mixture, in units of the variance of a batch: intervals are narrowest about where the
# change is as large as batches vary.
_MIXTURE = 1.0
# Batches from the beginning of one stretch to that of the next.
STRETCH = 10
# No larger correlation is believed: its correction has no limit at 1.
_LARGEST_CORRELATION = 0.9


@dataclass(frozen=True)
class Watched:
    """By how much the mean of the batches since differs from the baseline, after each batch.

    Attributes:
        change: mean of the batches up to this one minus mean of the baseline ``(..., n)``.
        reach: half of the always-valid interval; infinite where there are too few batches ``(..., n)``.
        correlation: of a batch with the next, estimated from all of them ``(..., n)``.
    """

    change: Array
    reach: Array
    correlation: Array

    @property
    def first(self) -> Integers:
        """The first batch, from 1, whose interval excludes 0; 0 where none does ``(...)``."""
        excluded = np.abs(self.change) > self.reach
        return np.where(excluded.any(-1), excluded.argmax(-1) + 1, 0)


def watch(baseline: Array, later: Array, *, level: float = 1 - CONFIDENCE, grain: float = 0.0) -> Watched:
    """Compare batches with a baseline, again after each of them.

    Let t be the statistic of the t test of both means, with ν = b + n − 2 degrees of freedom, and m = b n / (b + n).
    A mixture over changes, normal with g times the variance of a batch, gives the likelihood ratio

        (1 + m g)^(−1/2) · [(1 + t² / ν) / (1 + t² / (ν (1 + m g)))]^((ν + 1) / 2)

    against no change. Its mean is 1 where nothing changes, whatever n, so it ever exceeds 1 / ``level`` in no more than
    ``level`` of all histories (Ville's inequality). The interval holds the changes for which it does not. Where r is
    the correlation of a batch with the next, t² is divided by (1 + r) / (1 − r); r is the estimate plus 2 / (b + n),
    by which estimates from few batches are too low, and at least 0.

    Two batches of 0.4 and 0.6, and then always 0.9:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.always_valid import watch
    >>> watched = watch(np.array([0.4, 0.6] * 5), np.full(30, 0.9))
    >>> round(float(watched.change[-1]), 3), int(watched.first)
    (0.4, 3)

    Args:
        baseline: values of batches ``(..., b)``, at least two.
        later: values of the batches since ``(..., n)``.
        level: how often the interval may ever exclude 0 where nothing changes.
        grain: what one choice more adds to a batch: where all values are equal, they may differ by this.
    """
    b, n = baseline.shape[-1], np.arange(1, later.shape[-1] + 1)
    middle = baseline.mean(-1, keepdims=True)
    # Moments about the baseline, so that no precision is lost.
    off, since = baseline - middle, later - middle
    sums = np.cumsum(since, -1)
    change = sums / n
    squares = (off**2).sum(-1, keepdims=True) + np.cumsum(since**2, -1) - sums * change
    squares = np.maximum(squares, 0.0) + (b + n) * grain**2
    m, freedom = b * n / (b + n), b + n - 2
    correlation = _correlation(off, since, sums, squares)
    # t² / ν up to which the ratio stays below 1 / level.
    ratio = 1 / (1 + m * _MIXTURE)
    quantile = (1 / (level**2 * ratio)) ** (1 / (freedom + 1))
    room = 1 - quantile * ratio
    limit = np.where(room > 0, (quantile - 1) / np.where(room > 0, room, 1.0), np.inf)
    believed = np.clip(correlation + 2 / (b + n), 0.0, _LARGEST_CORRELATION)
    reach = np.sqrt(limit * squares / m * (1 + believed) / (1 - believed))
    return Watched(change, reach, correlation)


@dataclass(frozen=True)
class Changed:
    """The first change that is shown, whenever it began.

    Attributes:
        at: the batch, from 1, after which it is shown; 0 where none is ``(...)``.
        start: batches before the stretch that shows it ``(...)``.
    """

    at: Integers
    start: Integers


def level_of_stretch(number: int, level: float = 1 - CONFIDENCE) -> float:
    """Return the share of a level that a stretch has: half of it the first one, 1 / (2 j (j + 1)) the one after j.

    All shares add up to the level, however many stretches there are:

    >>> from moeprobe.metrics.stats.always_valid import level_of_stretch
    >>> round(sum(level_of_stretch(number) for number in range(100_000)), 5)
    0.05
    """
    return level / 2 if number == 0 else level / (2 * number * (number + 1))


def first_change(
    baseline: Array, later: Array, *, level: float = 1 - CONFIDENCE, grain: float = 0.0
) -> Changed:
    """Return when a change is first shown, in all batches since the baseline or in those since any tenth batch.

    A change that comes late would long be hidden by the batches before it. So every ten batches another stretch begins,
    with its own share of the level (``level_of_stretch``).
    """
    at = np.zeros(later.shape[:-1], np.int64)
    start = np.zeros_like(at)
    for number in range(-(-later.shape[-1] // STRETCH)):
        before = number * STRETCH
        first = watch(baseline, later[..., before:], level=level_of_stretch(number, level), grain=grain).first
        at_batch = np.where(first > 0, before + first, 0)
        is_earlier = (at_batch > 0) & ((at == 0) | (at_batch < at))
        at, start = np.where(is_earlier, at_batch, at), np.where(is_earlier, before, start)
    return Changed(at, start)


def _correlation(off: Array, since: Array, sums: Array, squares: Array) -> Array:
    """Return the correlation of a batch with the next, of both parts together ``(..., n)``; 0 where nothing varies."""
    of_baseline = (off[..., 1:] * off[..., :-1]).sum(-1, keepdims=True)
    pairs = np.zeros_like(since)
    np.cumsum(since[..., 1:] * since[..., :-1], -1, out=pairs[..., 1:])
    n = np.arange(1, since.shape[-1] + 1)
    mean = sums / n
    # Σ (x − x̄)(y − x̄) over a batch x and the next y.
    of_later = pairs - mean * (2 * sums - since[..., :1] - since) + (n - 1) * mean**2
    varies = squares > 0
    correlation: Array = np.where(varies, (of_baseline + of_later) / np.where(varies, squares, 1.0), 0.0)
    return correlation
