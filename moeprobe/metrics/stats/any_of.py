"""How often at least one of several things would happen if they were independent of each other.

Axes: R resamples, n images, L things.
"""

from dataclasses import dataclass

import numpy as np

from moeprobe.metrics.stats.statistic import Array, Totals, divide


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
        """Return the sums of the hits, and that of the trials last."""
        return np.append(self.hits.sum(0), self.trials.sum())

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        return float(1 - (1 - divide(totals[:-1], totals[-1])).prod())

    def influence(self, totals: Totals | None = None) -> Array:
        """Return Σ_l dp_l Π_{m ≠ l} (1 − p_m)."""
        totals = self.totals() if totals is None else totals
        rates = divide(totals[:-1], totals[-1])
        of_rates = divide(self.hits - self.trials[:, None] * rates, totals[-1])
        without = np.array([np.delete(1 - rates, place).prod() for place in range(len(rates))])
        return of_rates @ without


@dataclass(frozen=True)
class Observed:
    """How often at least one happened, divided by how often it would if they were independent (``AnyOf``).

    Attributes:
        some: ``(n,)`` how often at least one happened.
        independent: what it would be.
    """

    some: Array
    independent: AnyOf

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        observed = divide(self.some @ weights, self.independent.trials @ weights)
        return divide(observed, self.independent.evaluate(weights))

    def totals(self) -> Totals:
        """Return the sum of ``some``, and the totals of the other."""
        return np.array([self.some.sum()]), self.independent.totals()

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        (some,), rest = totals
        return float(divide(divide(some, rest[-1]), self.independent.value(rest)))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (do − value · de) / e."""
        totals = self.totals() if totals is None else totals
        (some,), rest = totals
        observed = divide(some, rest[-1])
        of_observed = divide(self.some - observed * self.independent.trials, rest[-1])
        expected = self.independent.value(rest)
        return divide(of_observed - self.value(totals) * self.independent.influence(rest), expected)
