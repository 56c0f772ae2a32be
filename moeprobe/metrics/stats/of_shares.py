"""A number that follows from the experts' shares of a load.

Axes: R resamples, n images, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from moeprobe.metrics.stats.statistic import Array, Totals, divide


@dataclass(frozen=True)
class OfShares:
    """A number read off the shares of the pooled histogram ``(n, E)``.

    Attributes:
        histogram: each image's load by expert.
        read: from shares ``(E, R)`` to the numbers ``(R,)``.
        slope: the derivative of the number by each share ``(E,)``.
    """

    histogram: Array
    read: Callable[[Array], Array]
    slope: Callable[[Array], Array]

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights; NaN without any load."""
        counts = self.histogram.T @ weights
        return self.read(divide(counts, counts.sum(0)))

    def totals(self) -> Totals:
        """Return the summed histogram."""
        return self.histogram.sum(0)

    def value(self, totals: Totals) -> float:
        """Return the number."""
        return float(self.read(divide(totals, totals.sum())[:, None])[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence on the number, by its derivative with respect to the shares."""
        counts = self.totals() if totals is None else totals
        shares = divide(counts, counts.sum())
        own = self.histogram - self.histogram.sum(1, keepdims=True) * shares
        return divide(own @ self.slope(shares), counts.sum())
