"""Numbers that are read off summed columns, with each image's influence by numerical derivatives.

Axes: C columns, R resamples, n images.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.statistic import Array, Totals

# Steps of the derivatives, relative to all that was counted: between rounding and curvature.
_STEP = 1e-6


@dataclass(frozen=True)
class OfTotals:
    """A number that depends on the ratios of summed columns alone.

    Attributes:
        columns: ``(n, C)``.
        read: from sums ``(C, R)`` to the numbers ``(R,)``, the same for multiples of the sums; NaN where there is none.
        undefined: the flag where there are trials and no number.
    """

    columns: Array
    read: Callable[[Array], Array]
    undefined: str = "collapsed"

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights."""
        return self.read(self.columns.T @ weights)

    def totals(self) -> Totals:
        """Return the summed columns."""
        return self._sums

    def value(self, totals: Totals) -> float:
        """Return the number."""
        return float(self.read(np.asarray(totals, float)[:, None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence: its columns times the derivative by each sum."""
        return self._influence_by(np.ones(self.columns.shape[1], bool), totals)

    def _influence_by(self, some: NDArray[np.bool_], totals: Totals | None) -> Array:
        """Return each image's influence through some of its columns ``(C,)``."""
        sums = np.asarray(self._sums if totals is None else totals, float)
        step = _STEP * max(float(np.abs(sums).max(initial=0)), 1.0)
        # What no image counts moves nothing, and a number may not exist beside it.
        some = some & self.columns.any(0)
        steps = step * np.eye(len(sums))[:, some]
        slope = (self.read(sums[:, None] + steps) - self.read(sums[:, None] - steps)) / (2 * step)
        return self.columns[:, some] @ slope

    @cached_property
    def _sums(self) -> Array:
        return self.columns.sum(0)


@dataclass(frozen=True)
class LossOfTotals(OfTotals):
    """Such a number that follows from losses.

    Attributes:
        is_loss: which columns are losses ``(C,)``, or changes of them.
    """

    is_loss: NDArray[np.bool_] = field(kw_only=True)

    def contributions(self, totals: Totals | None = None) -> Array:
        """Return the influence of each image's losses, which add up to a number that is proportional to them."""
        return self._influence_by(self.is_loss, totals)


@dataclass(frozen=True)
class ShareOfTotals(OfTotals):
    """Such a number between 0 and 1."""

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        return proportions.score_interval(self.value(self._sums if totals is None else totals), error, images)

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Images are no trials of it."""
        return False
