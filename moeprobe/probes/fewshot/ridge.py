"""Ridge regression of classes on features: every strength of the penalty from one decomposition, in float64.

Features are standardized by the images that are fitted, a constant is appended (so that the penalty hardly holds the
intercept back), targets are 1 for an image's class and −1 for the others. With inputs X = U S Vᵀ the weights for a
strength λ are V S / (S² + λ) Uᵀ Y.

Sources: the particulars follow the few-shot evaluation of V-MoE's released program; leaving one out in closed
form, Hastie, Tibshirani and Friedman 2009, equation 7.64.

Axes: n images, D features, C classes, r = min(n, D + 1).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array

STRENGTHS = tuple(2.0**power for power in range(-10, 20))
_CONSTANT = 100.0
# Added to standard deviations: a feature that never changes is divided by this, and stays 0.
_EPSILON = 1e-5


@dataclass(frozen=True)
class Classifier:
    """A fitted regression: ``mean`` and ``scale`` ``(D,)`` of the features, ``weights`` ``(D + 1, C)``."""

    mean: Array
    scale: Array
    weights: Array

    def scores(self, features: Array) -> Array:
        """Return the scores ``(m, C)`` of features ``(m, D)``."""
        return _inputs(features, self.mean, self.scale) @ self.weights


class Ridge:
    """The regressions on one set of images, one per strength.

    Args:
        features: ``(n, D)``, all finite.
        labels: ``(n,)`` classes 0 … C − 1.
        num_classes: C.
    """

    def __init__(self, features: Array, labels: NDArray[np.int64], *, num_classes: int) -> None:
        self._mean, self._scale = features.mean(0), features.std(0) + _EPSILON
        inputs = _inputs(features, self._mean, self._scale)
        self._left, self._singular, self._right = np.linalg.svd(inputs, full_matrices=False)
        self._targets = targets(labels, num_classes)
        self._projected = self._left.T @ self._targets

    def classifier(self, strength: float) -> Classifier:
        """Return the regression with this strength."""
        return Classifier(self._mean, self._scale, self._right.T @ self._shrunk(strength))

    def along(self, features: Array) -> Iterator[tuple[float, Array]]:
        """Yield (strength, scores ``(m, C)``) of features ``(m, D)`` for every strength, from the weakest on."""
        inputs = _inputs(features, self._mean, self._scale) @ self._right.T
        for strength in STRENGTHS:
            yield strength, inputs @ self._shrunk(strength)

    def left_out(self) -> Iterator[tuple[float, Array]]:
        """Yield (strength, scores ``(n, C)``) of each image by the regression on all the others.

        The others are standardized as all are together. An image's residual is the regression's residual divided by
        1 − its leverage; both are summed from small terms, so that a fit through every image loses no digits.
        """
        outside = self._targets - self._left @ self._projected
        remainder = np.clip(1 - np.square(self._left).sum(1), 0, None)
        for strength in STRENGTHS:
            missed = strength / (self._singular**2 + strength)
            residual = outside + self._left @ (missed[:, None] * self._projected)
            yield strength, self._targets - residual / (remainder + np.square(self._left) @ missed)[:, None]

    def _shrunk(self, strength: float) -> Array:
        return (self._singular / (self._singular**2 + strength))[:, None] * self._projected


def choose_strength(candidates: Iterable[tuple[float, Array]], labels: NDArray[np.int64]) -> float:
    """Return the strength with the highest accuracy on images that were not fitted.

    Args:
        candidates: (strength, scores ``(m, C)``), from the weakest on.
        labels: ``(m,)``.

    Of equal accuracies the smallest squared error to the targets decides, of equal errors the greatest strength.
    """
    best = (-1.0, 0.0, 0.0)
    for strength, scores in candidates:
        error = float(np.square(scores - targets(labels, scores.shape[1])).mean())
        best = max(best, (float((scores.argmax(1) == labels).mean()), -error, strength))
    return best[2]


def targets(labels: NDArray[np.int64], num_classes: int) -> Array:
    """Return ``(n, C)``: 1 for the class of an image, −1 for the others."""
    return 2.0 * (labels[:, None] == np.arange(num_classes)) - 1.0


def _inputs(features: Array, mean: Array, scale: Array) -> Array:
    """Return standardized features with the constant ``(n, D + 1)``."""
    return np.pad((features - mean) / scale, ((0, 0), (0, 1)), constant_values=_CONSTANT)
