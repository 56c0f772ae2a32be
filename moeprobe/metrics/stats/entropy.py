"""How even a load is, from histograms of images.

Axes: R resamples, n images, E experts.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.statistic import Totals, divide


@dataclass(frozen=True)
class Entropy:
    """Entropy of the pooled histogram ``(n, E)``, divided by log E: 1 = all experts equally used, 0 = one expert.

    The entropy of n images' histogram is too low on average: by ½ Σ_e Var(p_e) / p_e, the second order of its
    expansion (Miller 1955, where every image is one token). That is added, as it follows from the images under their
    weights, so twice in a resample, whose shares vary about the sample's as the sample's do about the true ones.
    """

    histogram: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the normalized entropy under each set of weights, 1 at most."""
        return self._entropy(self.histogram.T @ weights, *self._squares(weights**2))

    def _entropy(self, counts: Array, squares: Array, square: Array) -> Array:
        """Return the entropy of summed histograms ``(E, R)``, with ``_squares`` of the same weights."""
        total = counts.sum(0)
        share = divide(counts, total)
        terms = np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0)
        lacking = (divide(squares, counts * total, empty=0.0).sum(0) - divide(square, total**2)) / 2
        entropy = (lacking - terms.sum(0)) / self._log_experts
        return np.where(total > 0, np.clip(entropy, 0.0, 1.0) + 0.0, np.nan)

    def totals(self) -> Totals:
        """Return the summed histogram, and the sums of squares."""
        squares, square = (sums[..., 0] for sums in self._squares(np.ones((len(self.histogram), 1))))
        return self.histogram.sum(0), squares, square

    def value(self, totals: Totals) -> float:
        """Return the normalized entropy, 1 at most."""
        return float(self._entropy(*(sums[..., None] for sums in totals))[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative, before it is cut off at 1."""
        counts, squares, square = self.totals() if totals is None else totals
        total = counts.sum()
        share = divide(counts, total)
        load = self.histogram.sum(1)
        spread = (self.histogram - load[:, None] * share) @ np.log(np.where(share > 0, share, 1.0))
        # Of Σ_e Q_e / (N C_e) − Q / N², with C and Q the experts' sums of h and of h².
        rate = divide(np.ones_like(counts), counts * total, empty=0.0)
        lacking = 2 * self.histogram**2 @ rate - self.histogram @ (squares * divide(rate, counts, empty=0.0))
        lacking -= load * divide(squares @ rate, total)
        lacking -= divide(2 * load**2, total**2) - divide(2 * load * square, total**3)
        return (lacking / 2 - divide(spread, total)) / self._log_experts

    @property
    def _log_experts(self) -> float:
        return float(np.log(max(self.histogram.shape[1], 2)))

    def _squares(self, weights: Array) -> tuple[Array, Array]:
        """Return Σ_i w_i h_ie² ``(E, R)`` and Σ_i w_i (Σ_e h_ie)² ``(R,)``."""
        return (self.histogram**2).T @ weights, self.histogram.sum(1) ** 2 @ weights
