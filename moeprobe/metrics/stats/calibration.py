"""How far are predicted probabilities from observed shares, beyond what noise alone brings?

The raw calibration error is Σ_b (n_b / n) |d_b|: d_b is the predicted minus the observed share of bin b, which has n_b
of n tokens. Noise of either sign adds to it, so it is above 0 where predictions are exact. Hence the value is
Σ_b (n_b / n) √max(d_b² − Var d_b, 0). The floor is what the raw form comes to on average where flips are redrawn from
the predictions: Σ_b (n_b / n) √(2 Var d_b / π), since d_b is nearly normal.

Var d_b is a variance over images, since tokens of an image vary together. It is never below the variance of independent
tokens that flip with the predicted probability: images without a flip do not say how they vary.

The interval goes from raw − floor − t · SE to raw + t · SE. Noise never lowers the mean of a distance and raises it by
the floor at most, so that this holds however small the truth is.

Axes: R resamples, n images, C bins.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.metrics.stats.bootstrap import LINEARIZED
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.statistic import Array, Totals, divide, error_of

# A difference of two errors has an interval where each is so many times its floor: what is left of the noise is then
# small beside the standard error.
CLEAR = 5.0


@dataclass(frozen=True)
class Binned:
    """Tokens of images by bins of their prediction.

    Attributes:
        tokens: ``(n, C)``.
        predicted: sums of the predicted probabilities ``(n, C)``.
        flips: ``(n, C)``.
    """

    tokens: Array
    predicted: Array
    flips: Array

    @property
    def excess(self) -> Array:
        """Predicted minus observed flips ``(n, C)``."""
        return self.predicted - self.flips

    def sums(self, weights: Array) -> tuple[Array, ...]:
        """Return sums ``(C, R)`` of images with weights ``(n, R)``.

        In this order: of tokens, predictions and the excess e of predictions over flips, of e², e · tokens and tokens²,
        and of the images with any token.
        """
        tokens, excess = self.tokens, self.excess
        squares = excess**2, excess * tokens, tokens**2
        columns = tokens, self.predicted, excess, *squares, (tokens > 0).astype(np.float64)
        return tuple(column.T @ weights for column in columns)

    def totals(self) -> Totals:
        """Return the sums ``(C,)`` of all images."""
        return tuple(part[..., 0] for part in self.sums(np.ones((len(self.tokens), 1))))


def raw_error(sums: Totals) -> Array:
    """Return Σ_b (n_b / n) |d_b| of sums ``(C, ...)``.

    Ten tokens of one bin, of which three are predicted to flip and five do, |0.3 − 0.5|:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.calibration import Binned, raw_error
    >>> tokens, predicted, flips = (np.array([[number]]) for number in (10.0, 3.0, 5.0))
    >>> float(raw_error(Binned(tokens, predicted, flips).totals()))
    0.2
    """
    tokens, _, excess, *_ = sums
    return divide(np.abs(excess).sum(0), tokens.sum(0))


def debiased_error(sums: Totals) -> Array:
    """Return Σ_b (n_b / n) √max(d_b² − Var d_b, 0) of sums ``(C, ...)``.

    Ten tokens of one image and one bin, with a distance of 0.2. Independent flips have a variance of 0.3 · 0.7 / 10,
    so √(0.04 − 0.021) is left:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.calibration import Binned, debiased_error
    >>> tokens, predicted, flips = (np.array([[number]]) for number in (10.0, 3.0, 5.0))
    >>> round(float(debiased_error(Binned(tokens, predicted, flips).totals())), 3)
    0.138
    """
    tokens, _, excess, *_ = sums
    squares = divide(excess, tokens, empty=0.0) ** 2 - _variance(sums)
    return divide((tokens * np.sqrt(np.maximum(squares, 0.0))).sum(0), tokens.sum(0))


def noise_floor(sums: Totals) -> Array:
    """Return what the raw form comes to on average where flips follow the predictions, of sums ``(C, ...)``."""
    tokens = sums[0]
    return divide((tokens * np.sqrt(2 / np.pi * _variance(sums))).sum(0), tokens.sum(0))


def _variance(sums: Totals) -> Array:
    """Return the variance of each bin's distance ``(C, ...)``."""
    tokens, predicted, excess, squares, products, counts, images = sums
    distance, share = divide(excess, tokens, empty=0.0), divide(predicted, tokens, empty=0.0)
    # Σ (e − distance · tokens)², whose last bits may be below 0.
    spread = np.maximum(squares - 2 * distance * products + distance**2 * counts, 0.0)
    over_images = divide(images * spread, (images - 1) * tokens**2, empty=0.0)
    # Within a bin predictions hardly differ, so that their mean says how much independent flips vary.
    independent = divide(share * (1 - share), tokens, empty=0.0)
    return np.maximum(over_images, independent)


@dataclass(frozen=True)
class CalibrationError:
    """The debiased error, with an interval that also holds where the truth is small."""

    binned: Binned
    linear: ClassVar[bool] = True
    method: ClassVar[str] = LINEARIZED
    # Its variance and its floor are over images, not over what else was sampled.
    noise_of_images: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the error under each set of weights."""
        return debiased_error(self.binned.sums(weights))

    def totals(self) -> Totals:
        """Return the sums of the bins; then, of the excess e and the tokens m of an image, Σ e eᵀ, Σ e m and Σ m²."""
        excess, tokens = self.binned.excess, self.binned.tokens.sum(1)
        return self.binned.totals(), excess.T @ excess, excess.T @ tokens, tokens @ tokens

    def value(self, totals: Totals) -> float:
        """Return the error."""
        return float(debiased_error(totals[0]))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return each image's influence on the raw form, whose noise is the same; NaN where noise decides the value."""
        sums, *_ = self.totals() if totals is None else totals
        excess, tokens = self.binned.excess, self.binned.tokens.sum(1)
        if not debiased_error(sums) >= CLEAR * noise_floor(sums):
            return np.full(len(tokens), np.nan)
        return divide(excess @ np.sign(sums[2]) - raw_error(sums) * tokens, sums[0].sum())

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return the interval over ``images``; ``error`` is not known where noise decides the value."""
        sums, squares, products, counts = self.totals() if totals is None else totals
        value, raw, floor = (float(read(sums)) for read in (debiased_error, raw_error, noise_floor))
        signs = np.sign(sums[2])
        spread = signs @ squares @ signs - 2 * raw * signs @ products + raw**2 * counts
        reach = critical(images) * error_of(max(float(spread), 0.0), images) / float(sums[0].sum())
        return min(max(raw - floor - reach, 0.0), value), min(max(raw + reach, value), 1.0)

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Return False: images are no trials of it."""
        return False


@dataclass(frozen=True)
class CalibrationFloor:
    """What noise alone brings the raw form to: a level to compare it with, without an interval."""

    binned: Binned
    linear: ClassVar[bool] = True
    no_interval: ClassVar[str] = "level"

    def evaluate(self, weights: Array) -> Array:
        """Return the level under each set of weights."""
        return noise_floor(self.binned.sums(weights))

    def totals(self) -> Totals:
        """Return the sums of the bins."""
        return self.binned.totals()

    def value(self, totals: Totals) -> float:
        """Return the level."""
        return float(noise_floor(totals))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return 0: it is a level."""
        return np.zeros(len(self.binned.tokens))
