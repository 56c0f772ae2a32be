"""Many experts at once: whether they differ at all, which of them do, and what each is worth among all.

With 256 experts in each of 48 layers, intervals that hold for all at once are so wide that often none excludes
anything, although the experts clearly differ. So one test asks of all together, before single experts are named. They
are named at a false discovery rate: on average at most 5 % of those named are named wrongly. A value *among all* is
shrunk towards the mean, by as much as its noise is of what values vary by; it predicts other inputs better than the
value itself, which is extreme by chance too.

All experts are measured on the same inputs, so their errors vary together. The test therefore resamples inputs, the
same for all experts; shrinking takes the errors of distances from the mean.

Sources: studentized resamples, Davison and Hinkley 1997 (section 4.4); false discovery rates, Benjamini and Hochberg
1995, also where estimates vary together with one sign, Benjamini and Yekutieli 2001; shrinking by moments, Efron and
Morris 1975.

Axes: m experts, n inputs, R resamples.
"""

import numpy as np

from moeprobe.metrics.stats.bootstrap import NUM_RESAMPLES, image_weights
from moeprobe.metrics.stats.statistic import Array, divide

# The false discovery rate at which experts are named.
RATE = 0.05
# A squared error, in units of the sample's, that is the rounding of float32.
_ROUNDING = 1e-5


class ExpertsTest:
    """A test of whether the truths of several groups of experts are equal within each group.

    The statistic is the sum over all experts of (value − mean of its group)² / error². Resamples of inputs, with errors
    of their own, say what it comes to where nothing differs. Errors of the sample alone would not do: of 256 skewed
    prices that are equal, 0.13 instead of 0.05 seemed to differ.

    Args:
        num_inputs: n.
        seed: of the resamples.
        num_resamples: R.
    """

    def __init__(self, num_inputs: int, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> None:
        self._weights = image_weights(num_inputs, seed, range(num_resamples)).T.astype(np.float32)
        self._observed = 0.0
        self._resampled = np.zeros(num_resamples)

    def add(self, values: Array, influences: Array) -> float:
        """Add a group's values ``(m,)`` with the inputs' influences ``(n, m)``; returns the p of the group alone."""
        centered = _center(influences)
        n, squares = len(centered), np.square(_errors(centered))
        observed = float(divide((values - values.mean()) ** 2, squares, empty=0.0).sum())
        # In the unit of each expert's error, since float32 cannot represent the squares of small numbers.
        scaled = divide(centered, np.sqrt(squares), empty=0.0).astype(np.float32)
        sums, sums_of_squares = (
            (self._weights @ columns).astype(np.float64) for columns in (scaled, scaled**2)
        )
        spread = n / (n - 1) * (sums_of_squares - sums**2 / n)
        # Where an expert has no spread in a resample, the resample says nothing of it.
        resampled = divide(sums**2, np.where(spread > _ROUNDING, spread, 0.0), empty=0.0).sum(1)
        self._observed += observed
        self._resampled += resampled
        return _p(observed, resampled)

    @property
    def p(self) -> float:
        """The p of all groups together."""
        return _p(self._observed, self._resampled)


def shrink(values: Array, influences: Array) -> Array:
    """Return the values ``(m,)`` among all, from the inputs' influences ``(n, m)`` on them.

    Where noise explains all that the values vary by, each is their mean.

    Two experts with 0.1 and 0.3 on two inputs, which differ by noise as large as the distance itself:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.many import shrink
    >>> shrink(np.array([0.1, 0.3]), np.array([[0.2, -0.2], [-0.2, 0.2]])).round(6).tolist()
    [0.2, 0.2]
    """
    mean, noise = values.mean(), _errors(_center(influences)) ** 2
    between = max(float(values.var(ddof=1)) - float(noise.mean()) * len(values) / (len(values) - 1), 0.0)
    return mean + divide(between, between + noise, empty=1.0) * (values - mean)


def false_discovery(p_values: Array) -> Array:
    """Return the least false discovery rate at which each of the tests ``(m,)`` is named; NaN stays and does not count.

    Four tests: 4 · 0.01 / 1, 4 · 0.02 / 2, 4 · 0.03 / 3, and 0.9; none is above the one after it:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.many import false_discovery
    >>> false_discovery(np.array([0.9, 0.01, 0.03, 0.02])).round(6).tolist()
    [0.9, 0.04, 0.04, 0.04]
    """
    rates = np.full(len(p_values), np.nan)
    defined = np.flatnonzero(~np.isnan(p_values))
    order = defined[np.argsort(p_values[defined], kind="stable")]
    stepped = p_values[order] * len(order) / np.arange(1, len(order) + 1)
    rates[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return rates


def _center(influences: Array) -> Array:
    """Return the influences on each expert's distance from the mean of all ``(n, m)``."""
    return influences - influences.mean(1, keepdims=True)


def _errors(influences: Array) -> Array:
    """Return the standard errors ``(m,)`` over inputs."""
    n = len(influences)
    return np.sqrt(n / (n - 1) * np.square(influences).sum(0))


def _p(observed: float, resampled: Array) -> float:
    # The sample counts as a resample, so p is never 0. Rounding must not tell equal ones apart.
    return float((1 + np.count_nonzero(resampled >= observed * (1 - 1e-6))) / (1 + len(resampled)))
