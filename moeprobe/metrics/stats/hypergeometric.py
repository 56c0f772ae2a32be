"""The overlap of two independent random sets: what chance is where each query selects some of the keys it sees.

Of t visible keys one side selects a and the other b, each uniformly. The number x that both have is hypergeometric,

    P(x) = C(a, x) C(t − a, b − x) / C(t, b),

so its mean is a b / t, and the expected Jaccard index is Σ P(x) x / (a + b − x). Nothing is sampled.

Axes: U different t, W numbers x.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from moeprobe.metrics.stats.statistic import Array

# Numbers x to either side of the mean: beyond, a probability is below 1e-25 by Bernstein's inequality.
_LEAST, _DEVIATIONS = 40, 12
# Entries (U, W) in memory.
ENTRIES_AT_ONCE = 2**20


def expected_jaccard(visible: NDArray[np.integer], first: int, second: int) -> Array:
    """Return the expected Jaccard index of two random sets of ``first`` and ``second`` of ``visible`` keys.

    Two of four keys on either side: none in common with probability 1/6, one (J = 1/3) with 4/6, both (J = 1) with 1/6,
    so the mean is 4/18 + 1/6:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.hypergeometric import expected_jaccard
    >>> expected_jaccard(np.array([4]), 2, 2).round(3).tolist()
    [0.389]

    Args:
        visible: t of each query ``(N,)``; no less than either set.
        first: a, keys that one side selects.
        second: b, keys that the other side selects.
    """
    different, inverse = np.unique(visible, return_inverse=True)
    if not len(different):
        return np.zeros(0)
    # log n! of every n that occurs: a table is much faster than the function.
    log_factorial = gammaln(np.arange(int(different[-1]) + 2) + 1.0)
    parts, start = [], 0
    while start < len(different):
        spread = np.sqrt(first * second / different[start])
        width = int(min(2 * (_LEAST + _DEVIATIONS * spread) + 1, min(first, second) + 1))
        end = start + max(ENTRIES_AT_ONCE // width, 1)
        parts.append(_of_block(different[start:end].astype(np.int64), first, second, width, log_factorial))
        start = end
    return np.concatenate(parts)[inverse.reshape(-1)]


def _of_block(visible: NDArray[np.int64], first: int, second: int, width: int, log_factorial: Array) -> Array:
    """Return the expected index for some t ``(U,)``, over ``width`` numbers x around the mean of each."""

    def log_choose(n: NDArray[np.int64] | int, k: NDArray[np.int64] | int) -> Array:
        log_ways: Array = log_factorial[n] - log_factorial[k] - log_factorial[n - k]
        return log_ways

    t = visible[:, None]
    lowest, highest = np.maximum(0, first + second - t), min(first, second)
    around = first * second // t - width // 2
    begin = np.clip(around, lowest, np.maximum(highest - width + 1, lowest))
    common = np.minimum(begin + np.arange(width), highest)
    inside = begin + np.arange(width) <= highest
    # The same for all x: C(t, b), which the sum of the weights divides by.
    logs = log_choose(first, common) + log_choose(t - first, second - common)
    weight = np.where(inside, np.exp(logs - logs.max(1, keepdims=True)), 0.0)
    expected: Array = (weight * (common / (first + second - common))).sum(1) / weight.sum(1)
    return expected
