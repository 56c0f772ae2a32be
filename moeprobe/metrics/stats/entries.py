"""Which token of which image has which expert, as a list: of tokens with one expert, or with shares of several.

Axes: n images, J tokens of an image, E experts, m entries: tokens with one of their experts each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers, Totals, divide


@dataclass(frozen=True)
class Entries:
    """Which token of which image has which expert, and how much of the token that is; each ``(m,)``."""

    image: Integers
    token: Integers
    expert: Integers
    weight: Array

    def per_image(self, num_images: int, num_experts: int) -> Array:
        """Return each image's sums by expert ``(n, E)``."""
        key = self.image * num_experts + self.expert
        return added(key, self.weight, num_images * num_experts).reshape(num_images, num_experts)


def of_choices(choices: NDArray[np.generic]) -> Entries:
    """Return the entries of one expert for each token ``(n, J)``, -1 = none."""
    experts = choices.astype(np.int64)
    image, token = np.nonzero(experts >= 0)
    return Entries(image, token, experts[image, token], np.ones(len(image)))


def of_weights(weights: NDArray[np.generic]) -> Entries:
    """Return the entries of tokens that share their experts ``(n, J, E)``."""
    shares = weights.astype(np.float64)
    image, token, expert = np.nonzero(shares > 0)
    return Entries(image, token, expert, shares[image, token, expert])


def added(keys: Integers, values: Array, size: int) -> Array:
    """Return the sums of values by key ``(size,)``."""
    return np.bincount(keys, weights=values, minlength=size).astype(np.float64)


# A number that follows from the experts' shares of a load.
#
# Axes: R resamples, n images, E experts.


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
        deviation = self.histogram - self.histogram.sum(1, keepdims=True) * shares
        return divide(deviation @ self.slope(shares), counts.sum())


# How often at least one of several things would happen if they were independent of each other.
#
# Axes: R resamples, n images, L things.


@dataclass(frozen=True)
class AnyOf:
    """1 − Π_l (1 − p_l), where p_l is how often thing l happens: Σ hits_l / Σ trials.

    Attributes:
        hits: ``(n, L)`` how often each happened in an image.
        trials: ``(n,)`` out of how many.
    """

    hits: Array
    trials: Array

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        rates = divide(self.hits.T @ weights, self.trials @ weights)
        return 1 - (1 - rates).prod(0)

    def totals(self) -> Totals:
        """Return the sums of the hits, then the sum of the trials."""
        return np.append(self.hits.sum(0), self.trials.sum())

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        return float(1 - (1 - divide(totals[:-1], totals[-1])).prod())

    def influence(self, totals: Totals | None = None) -> Array:
        """Return Σ_l dp_l Π_{m ≠ l} (1 − p_m)."""
        totals = self.totals() if totals is None else totals
        rates = divide(totals[:-1], totals[-1])
        of_rates = divide(self.hits - self.trials[:, None] * rates, totals[-1])
        without = np.array([np.delete(1 - rates, layer).prod() for layer in range(len(rates))])
        return of_rates @ without


@dataclass(frozen=True)
class Observed:
    """How often at least one happened, divided by how often it would if they were independent (``AnyOf``).

    Attributes:
        hits: ``(n,)`` how often at least one happened.
        independent: what it would be.
    """

    hits: Array
    independent: AnyOf

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        observed = divide(self.hits @ weights, self.independent.trials @ weights)
        return divide(observed, self.independent.evaluate(weights))

    def totals(self) -> Totals:
        """Return the sum of ``hits``, and the totals of the other."""
        return np.array([self.hits.sum()]), self.independent.totals()

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        (hits,), independent_totals = totals
        return float(divide(divide(hits, independent_totals[-1]), self.independent.value(independent_totals)))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (do − value · de) / e."""
        totals = self.totals() if totals is None else totals
        (hits,), independent_totals = totals
        observed = divide(hits, independent_totals[-1])
        of_observed = divide(self.hits - observed * self.independent.trials, independent_totals[-1])
        expected = self.independent.value(independent_totals)
        return divide(
            of_observed - self.value(totals) * self.independent.influence(independent_totals), expected
        )
