"""What a number comes to by permutation: mean, range and p."""

from typing import NamedTuple

import numpy as np

from moeprobe.metrics.stats.statistic import Array, Integers


class Permuted(NamedTuple):
    """The mean of a number over permutations, the range that holds 95 % of them, and the observed number's p."""

    mean: float
    low: float
    high: float
    p: float


def compare_with(values: Integers | Array, observed: float, *, fewer: bool = False) -> Permuted:
    """Return what permuted numbers ``(D,)`` say of the observed one, which counts as one of them for p (one-sided).

    ``fewer``: whether p asks for numbers as small as the observed one, and not as large.

    Source: Phipson and Smyth 2010.

    Four permuted numbers, of which one is as large as the observed one, which counts too: p = (1 + 1) / (1 + 4):

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.permutations import compare_with
    >>> compare_with(np.array([1, 2, 3, 4]), observed=4)
    Permuted(mean=2.5, low=1.0, high=4.0, p=0.4)
    """
    low, high = np.quantile(values, [0.025, 0.975], method="inverted_cdf")
    as_far = values <= observed if fewer else values >= observed
    return Permuted(
        float(values.mean()), float(low), float(high), float((1 + as_far.sum()) / (1 + len(values)))
    )
