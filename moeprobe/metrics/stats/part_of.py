"""A part of a mean as a share of it, where the mean is more than rounding.

Axes: R resamples, n images.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.statistic import Totals, divide, error_of


@dataclass(frozen=True)
class PartOf:
    """sum(part) / sum(total), each ``(n,)``; NaN where the mean of the whole is not known to be above ``floor``.

    A share of mere rounding can be any number, and its resamples do not show that. So there is none where the mean
    of the whole is at most the floor, or its interval (t standard errors) reaches the floor.

    Attributes:
        part: the numerator, of any sign.
        total: what it is a part of, never negative.
        count: trials that ``total`` is the sum over.
        floor: the mean per trial that rounding explains.
    """

    part: Array
    total: Array
    count: Array
    floor: float
    undefined: ClassVar[str] = "no_mismatch"

    def evaluate(self, weights: Array) -> Array:
        """Return the share under each set of weights; NaN where the whole, of all images, is rounding."""
        if self._is_rounding(self.totals()):
            return np.full(weights.shape[1], np.nan)
        return divide(self.part @ weights, self.total @ weights)

    def totals(self) -> Totals:
        """Return the sums of part, whole w and count c, then Σ w², Σ w c, Σ c², and the images with c > 0."""
        total, count = self.total, self.count
        sums = [self.part.sum(), total.sum(), count.sum()]
        return np.array([*sums, total @ total, total @ count, count @ count, np.count_nonzero(count)])

    def value(self, totals: Totals) -> float:
        """Return the share."""
        return np.nan if self._is_rounding(totals) else float(divide(totals[0], totals[1]))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (part − value · whole) / sum of the wholes."""
        totals = self.totals() if totals is None else totals
        return divide(self.part - self.value(totals) * self.total, totals[1])

    def _is_rounding(self, totals: Totals) -> bool:
        _, total, count, squares, products, counts, images = (float(value) for value in totals)
        if count == 0 or total / count <= self.floor:
            return True
        mean = total / count
        if images < 2:
            return False
        # Σ (w − mean c)², whose last bits may be below 0.
        spread = max(squares - 2 * mean * products + mean**2 * counts, 0.0) / count**2
        return mean - critical(int(images)) * error_of(spread, int(images)) <= self.floor
