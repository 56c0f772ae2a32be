"""The chance level of a product: the mean product of vectors that are drawn from two sides.

Axes: R resamples, n images, F entries of a vector.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.arrays import Array, remembered
from moeprobe.metrics.stats.statistic import Totals, divide


@dataclass(frozen=True)
class MeanProduct:
    """Σ_{i ≠ j} Σ_f x_if y_jf / Σ_{i ≠ j} s_i t_j: the mean product of vectors drawn from two sides, of two images.

    ``x`` and ``y`` ``(n, F)`` are an image's summed vectors, ``s`` and ``t`` ``(n,)`` how many they are of. An image is
    paired with others only, as in ``chance.Chance``.
    """

    x: Array
    y: Array
    s: Array
    t: Array

    @remembered
    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        squared = weights**2
        product = ((self.x.T @ weights) * (self.y.T @ weights)).sum(0) - (self.x * self.y).sum(1) @ squared
        return divide(product, (self.s @ weights) * (self.t @ weights) - (self.s * self.t) @ squared)

    def totals(self) -> Totals:
        """Return the sums of x, y, s and t, and the sums of the products of an image with itself."""
        own_products = np.array([(self.x * self.y).sum(), (self.s * self.t).sum()])
        return self.x.sum(0), self.y.sum(0), np.array([self.s.sum(), self.t.sum()]), own_products

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        x, y, (s, t), (own_products, own_pairs) = totals
        return float(divide(x @ y - own_products, s * t - own_pairs))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the ratio of the two sums over pairs of images."""
        totals = self.totals() if totals is None else totals
        x, y, (s, t), (_, own_pairs) = totals
        product, pairs = (self.x * self.y).sum(1), self.s * self.t
        of_product = self.x @ y + self.y @ x - 2 * product
        of_pairs = self.s * t + self.t * s - 2 * pairs
        return divide(of_product - self.value(totals) * of_pairs, s * t - own_pairs)
