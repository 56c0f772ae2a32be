"""Whether the loads of experts change with time: a test of all experts together, then of each.

The load of an expert in a window of images is compared with that in the others by an analysis of variance: images of
one window are alike by more than images of different windows. Some of hundreds of experts in dozens of layers seem to
change by chance. So one test asks of all together, by shuffles of the images, which are the same for all layers.
Experts have the p of an F test, and are named at a false discovery rate (``many.false_discovery``).

Sources: analysis of variance of a ratio's linearized values, Cochran 1977 (section 6.3); permutation tests, Davison and
Hinkley 1997 (section 4.3).

Axes: n images, W windows, E experts, S shuffles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from moeprobe.metrics.stats.hot_experts import Windowed
from moeprobe.metrics.stats.permutations import compare_with
from moeprobe.metrics.stats.statistic import Array, divide

# A share of a sum of squares that is the rounding of float64.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class LoadCourse:
    """The course of the load of one layer.

    Two experts and four images. In the first two images expert 0 gets 3 of 4 choices and then 2, in the others 1 and 2,
    so half of its 8 choices. It is off by 1, 0, −1 and 0: 1 and −1 in the two windows, with a variance between of
    1² / 2 + 1² / 2 and a rest of 2 − 1:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.hot_experts import Windowed
    >>> from moeprobe.metrics.stats.load_course import LoadCourse
    >>> choices = np.array([[3.0, 1], [2, 2], [1, 3], [2, 2]])
    >>> course = LoadCourse.of(Windowed(choices, np.array([0, 0, 1, 1]), 2))
    >>> course.ratios.tolist(), course.p_values.round(3).tolist()
    ([2.0, 2.0], [0.293, 0.293])

    Attributes:
        ratios: variance between windows over that within, of each expert ``(E,)``; 0 where nothing varies.
        shuffled: their sum over experts in each shuffle ``(S,)``.
        p_values: of each expert ``(E,)``; NaN where nothing varies.
        spread: standard deviation of each expert's share between windows, without noise ``(E,)``.
    """

    ratios: Array
    shuffled: Array
    p_values: Array
    spread: Array

    @classmethod
    def of(cls, windowed: Windowed) -> Self:
        """Return the course of loads in at least two windows, with fewer windows than images."""
        histogram, sizes = windowed.histogram, np.bincount(windowed.window, minlength=windowed.num_windows)
        n, windows = len(histogram), len(sizes)
        share = divide(histogram.sum(0), histogram.sum())
        # By how much each image has more of an expert than its choices say.
        off = histogram - histogram.sum(1, keepdims=True) * share
        total = np.square(off).sum(0)

        def ratios(loads: Array) -> tuple[Array, Array]:
            """Return the ratios and the variances within of loads ``(W, E, R)``."""
            off_of_windows = loads - loads.sum(1, keepdims=True) * share[:, None]
            between = (np.square(off_of_windows) / sizes[:, None, None]).sum(0)
            # No less than rounding: where images of a window are all equal, the ratio has no limit.
            within = np.maximum(total[:, None] - between, _ROUNDING * total[:, None]) / (n - windows)
            return divide(between / (windows - 1), within, empty=0.0), within

        observed, within = (part[:, 0] for part in ratios(windowed.total[..., None]))
        varies = total > 0
        p_values = np.where(varies, special.fdtrc(windows - 1, n - windows, observed), np.nan)
        # A window of m images has a variance of within / m by noise.
        excess = np.maximum(observed - 1, 0.0) * within * windows / n
        spread = np.sqrt(excess) * n / histogram.sum()
        return cls(observed, ratios(windowed.shuffled_loads)[0].sum(0), p_values, spread)

    @property
    def p(self) -> float:
        """The p of no change in the layer."""
        return joint_p([self])


def joint_p(courses: Sequence[LoadCourse]) -> float:
    """Return the p of no change in several layers of the same images together."""
    observed = sum(float(course.ratios.sum()) for course in courses)
    shuffled = np.sum([course.shuffled for course in courses], axis=0)
    return compare_with(shuffled, observed).p
