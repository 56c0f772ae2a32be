"""How many experts get less than a limit, from histograms of images.

Axes: R resamples, n images, E experts.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Totals, divide, error_of


@dataclass(frozen=True)
class CountBelow:
    """How many experts have a share of the pooled histogram ``(n, E)`` that is less than ``limit``.

    A count moves in steps, so its interval follows from the shares: it goes from the number of experts whose 95 %
    score interval is below the limit to the number of experts whose interval reaches below it. Images that never choose
    an expert do not say how they vary in that: then the other shares do. Differences of counts are known to first order
    only where every share is known to be on one side: there no image moves the count.
    """

    histogram: Array
    limit: float

    def evaluate(self, weights: Array) -> Array:
        """Return the number of experts under each set of weights; NaN where nothing is chosen."""
        return self._count_below(self.histogram.T @ weights)

    def totals(self) -> Totals:
        """Return, of h = histogram and N = its sum per image: Σ h, Σ h², Σ h N, Σ N², and the images with N > 0."""
        load = self.histogram.sum(1)
        return (
            self.histogram.sum(0),
            (self.histogram**2).sum(0),
            self.histogram.T @ load,
            np.array([(load**2).sum(), np.count_nonzero(load)], dtype=np.float64),
        )

    def value(self, totals: Totals) -> float:
        """Return the number of experts."""
        return float(self._count_below(totals[0]))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return 0, or NaN where a share is not known to be on one side of the limit."""
        totals = self.totals() if totals is None else totals
        low, high = self._ends(totals, int(totals[3][1]))
        decided = ((high < self.limit) | (low >= self.limit)).all()
        return np.full(len(self.histogram), 0.0 if decided else np.nan)

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return how many are below for certain, and how many may be."""
        low, high = self._ends(self.totals() if totals is None else totals, images)
        return float((high < self.limit).sum()), float((low < self.limit).sum())

    def swing(self, totals: Totals | None) -> float:
        """Return 0: counts that are the same have no share in which they could differ."""
        return 0.0

    def is_binary(self) -> bool:
        """Return False: an image is not right or wrong."""
        return False

    def _count_below(self, counts: Array) -> Array:
        """Return how many of the summed ``counts`` ``(E, …)`` are less than the limit."""
        total = counts.sum(0)
        return np.where(total > 0, (divide(counts, total) < self.limit).sum(0), np.nan)

    def _ends(self, totals: Totals, images: int) -> tuple[Array, Array]:
        """Return the ends of the intervals of the shares ``(E,)``, NaN where nothing is chosen."""
        counts, squares, products, (square, _) = totals
        if not counts.any():
            return np.full_like(counts, np.nan), np.full_like(counts, np.nan)
        share = divide(counts, counts.sum())
        # Σ (h − p N)², whose last bits may be below 0.
        spread = np.maximum(squares - 2 * share * products + share**2 * square, 0)
        errors = [error_of(float(square), images) for square in divide(spread, counts.sum() ** 2)]
        # As many independent observations as would have the errors of all shares together.
        squares_of_errors = float(np.square(errors).sum())
        together = float((share * (1 - share)).sum()) / squares_of_errors if squares_of_errors else None
        ends = [
            score_interval(float(value), error, images, observations=together)
            for value, error in zip(share, errors, strict=True)
        ]
        low, high = np.array(ends).T
        return low, high
