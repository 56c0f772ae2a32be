"""How much the sums of images vary beside their mean: variance over mean, averaged over experts.

Axes: R resamples, n images, E experts.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.statistic import Totals, divide

# Added to the mean, so that an expert without any tokens has a value: 0.
EPSILON = 1e-6


@dataclass(frozen=True)
class Dispersion:
    """Mean over experts of Var_b(S_be) / (Mean_b(S_be) + ε), S the sums of images ``(n, E)``; population variance.

    Attributes:
        sums: ``(n, E)``.
        tokens: of each image ``(n,)``; those without any do not count.
        relative: divide by the most it could be, S (1 − 1 / E), where S is the mean of the tokens: whole images to one
            expert each.
    """

    sums: Array
    tokens: Array
    relative: bool

    def evaluate(self, weights: Array) -> Array:
        """Return the number under each set of weights."""
        return self._number(*self._sums(weights))

    def totals(self) -> Totals:
        """Return the summed sums, their squares, the images and their tokens."""
        return tuple(part[..., 0] for part in self._sums(np.ones((len(self.sums), 1))))

    def value(self, totals: Totals) -> float:
        """Return the number."""
        return float(self._number(*(np.asarray(part)[..., None] for part in totals))[0])

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the number by the weight of each image."""
        sums, squares, images, tokens = self.totals() if totals is None else totals
        mean = divide(sums, images)
        variance = divide(squares, images) - mean**2
        off = self.sums - mean
        slope = divide(1.0, mean + EPSILON)
        influence = (np.square(off) - variance) * slope - variance * slope**2 * off
        influence = divide(influence.mean(1), images)
        if self.relative:
            number = (variance * slope).mean()
            length = divide(tokens, images)
            influence = influence / self._maximum(length) - number / self._maximum(length) * divide(
                self.tokens - length, tokens
            )
        return np.where(self.tokens > 0, influence, 0.0)

    def _sums(self, weights: Array) -> tuple[Array, Array, Array, Array]:
        has_tokens = (self.tokens > 0).astype(np.float64)
        sums = np.where(self.tokens[:, None] > 0, self.sums, 0.0)
        return sums.T @ weights, np.square(sums).T @ weights, has_tokens @ weights, self.tokens @ weights

    def _number(self, sums: Array, squares: Array, images: Array, tokens: Array) -> Array:
        mean = divide(sums, images)
        # Rounding must not make a variance negative.
        variance = np.maximum(divide(squares, images) - mean**2, 0.0)
        number = (variance / (mean + EPSILON)).mean(0)
        return divide(number, self._maximum(divide(tokens, images))) if self.relative else number

    def _maximum(self, length: Array) -> Array:
        return length * (1 - 1 / self.sums.shape[1])
