"""How evenly images load experts: entropy, how many get less than a limit, variance over mean, any number of shares.

Axes: R resamples, n images, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Array, Totals, divide, error_of

# Relative to a sum of squares: a variance below this is rounding error, left where the squares cancel.
_ROUNDING = 1e-12
# The flag of a count that so few images do not say.
NOT_MEASURABLE = "not_measurable"


@dataclass(frozen=True)
class Entropy:
    """Entropy of the pooled histogram ``(n, E)``, divided by log E: 1 = all experts equally used, 0 = one expert.

    The entropy of n images' histogram is too low on average: by ½ Σ_e Var(p_e) / p_e, the second order of its
    expansion (Miller 1955, where every image is one token). That is added, as it follows from the images under their
    weights, so twice in a resample, whose shares vary about the sample's as the sample's do about the true ones.

    Shares of a half, two quarters and 0 have an entropy of 1.5 bits, and of four experts 2 at most:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.load import Entropy
    >>> load = Entropy(np.array([[4.0, 2.0, 2.0, 0.0]]))
    >>> round(load.value(load.totals()), 3)
    0.75
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


@dataclass(frozen=True)
class CountBelow:
    """How many experts have a share of the pooled histogram ``(n, E)`` that is less than ``limit``.

    A count moves in steps, so its interval follows from the shares: it goes from the number of experts whose 95 %
    score interval is below the limit to the number of experts whose interval reaches below it. Images that never choose
    an expert do not say how they vary in that: then the other shares do. Differences of counts are known to first order
    only where every share is known to be on one side: there no image moves the count.

    Where the interval spans more than half of the experts, the images say nothing of the count, and there is none. Only
    a collapse stays visible: where the images do not differ at all, the count is kept.

    Three experts with 70, 28 and 2 of 100 choices, one of which has less than a share of 1/30:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.load import CountBelow
    >>> count = CountBelow(np.array([[70.0, 28.0, 2.0]]), limit=1 / 30)
    >>> count.value(count.totals())
    1.0
    """

    histogram: Array
    limit: float
    undefined: ClassVar[str] = NOT_MEASURABLE

    def widest(self, totals: Totals | None) -> float:
        """Return how wide an interval of the count may be."""
        counts, squares, products, (square, _) = self.totals() if totals is None else totals
        return len(counts) / 2 if _spread(counts, squares, products, square).any() else np.inf

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
        spread = _spread(counts, squares, products, square)
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


def _spread(counts: Array, squares: Array, products: Array, square: float) -> Array:
    """Return Σ (h − p N)² of each expert ``(E,)``, with p its share; 0 where it is rounding."""
    share = divide(counts, counts.sum(), empty=0.0)
    spread = squares - 2 * share * products + share**2 * square
    return np.where(spread > _ROUNDING * square, spread, 0.0)


# Added to the mean, so that an expert without any tokens has a value: 0.
EPSILON = 1e-6


@dataclass(frozen=True)
class Dispersion:
    """Mean over experts of Var_b(S_be) / (Mean_b(S_be) + ε), S the sums of images ``(n, E)``; population variance.

    Two images load two experts with (2, 0) and (0, 2): for both the variance is 1, and the mean 1:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.load import Dispersion
    >>> load = Dispersion(np.array([[2.0, 0.0], [0.0, 2.0]]), tokens=np.array([2.0, 2.0]), relative=False)
    >>> round(load.value(load.totals()), 3)
    1.0

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
                # By the quotient rule: the number and its maximum both depend on the weights.
                self.tokens - length,
                tokens,
            )
        return np.where(self.tokens > 0, influence, 0.0)

    def _sums(self, weights: Array) -> tuple[Array, Array, Array, Array]:
        # An image without tokens must not count as an image with a load of 0.
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
        # The derivative of shares is the image's deviation from them.
        deviation = self.histogram - self.histogram.sum(1, keepdims=True) * shares
        return divide(deviation @ self.slope(shares), counts.sum())
