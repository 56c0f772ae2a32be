"""Experts that a request never uses while others do, those that independent tokens would miss, and the difference.

Axes: n requests, E experts.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.metrics.stats.statistic import Array, divide


@dataclass(frozen=True)
class _OfRequests:
    """What requests use; a request without tokens does not count.

    Attributes:
        uses: ``(n, E)`` tokens of a request that use each expert.
        tokens: ``(n,)``.
    """

    uses: Array
    tokens: Array
    linear: ClassVar[bool] = True

    @property
    def has_tokens(self) -> Array:
        """Which requests count ``(n,)``, 1 or 0."""
        return (self.tokens > 0).astype(np.float64)


@dataclass(frozen=True)
class ObservedAsleep(_OfRequests):
    """The mean over requests of the experts that a request never uses, of those that any request uses."""

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights; an expert that no request of a resample uses is dead there."""
        experts_used = self._experts_used()
        alive = (experts_used.T @ weights > 0).sum(0)
        return alive - divide(experts_used.sum(1) @ weights, self.has_tokens @ weights)

    def influence(self) -> Array:
        """Return the derivative by each request's weight; which experts are alive has none."""
        experts_used, has_tokens = self._experts_used(), self.has_tokens
        number = has_tokens.sum()
        mean = divide(has_tokens @ experts_used.sum(1), number)
        influence: Array = divide(has_tokens * (mean - experts_used.sum(1)), number)
        return influence

    def _experts_used(self) -> Array:
        return ((self.uses > 0) & (self.tokens > 0)[:, None]).astype(np.float64)


@dataclass(frozen=True)
class IndependentAsleep(_OfRequests):
    """The mean over requests of Σ_e (1 − p_e)^T: experts that T independent tokens miss, which others use.

    p_e is the share of all tokens that use expert e, and T the tokens of the request.
    """

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        has_tokens = self.has_tokens
        shares = divide(self.uses.T @ weights, self.tokens @ weights)
        values = [
            divide(weight @ (has_tokens * self._count_missed(share)), weight @ has_tokens)
            for weight, share in zip(weights.T, shares.T, strict=True)
        ]
        return np.array(values, dtype=np.float64)

    def influence(self) -> Array:
        """Return the derivative by each request's weight: through its own number, and through the shares."""
        has_tokens = self.has_tokens
        number = has_tokens.sum()
        shares = divide(self.uses.sum(0), self.tokens.sum())
        missed = self._count_missed(shares)
        value = divide(has_tokens @ missed, number)
        direct = divide(has_tokens * (missed - value), number)
        slope = np.zeros(len(shares))
        for length, requests in self._lengths():
            alive = (shares > 0) & (shares < 1)
            slope[alive] -= requests * length * (1 - shares[alive]) ** (length - 1)
        share_influence = divide(self.uses - shares * self.tokens[:, None], self.tokens.sum())
        influence: Array = direct + share_influence @ divide(slope, number)
        return influence

    def _count_missed(self, shares: Array) -> Array:
        """Return how many experts each request would miss ``(n,)``, of those that anybody uses."""
        missed = np.zeros(len(self.tokens))
        for length, _ in self._lengths():
            missed[self.tokens == length] = ((1 - shares[shares > 0]) ** length).sum()
        return missed

    def _lengths(self) -> list[tuple[float, int]]:
        """Return the different lengths, and how many requests have each."""
        lengths, requests = np.unique(self.tokens[self.tokens > 0], return_counts=True)
        return list(zip(lengths.tolist(), requests.tolist(), strict=True))


@dataclass(frozen=True)
class AsleepExcess:
    """The mean number of experts that a request never uses, minus that of independent tokens.

    It is no ratio: independent tokens of a long request miss hardly any expert.

    Attributes:
        observed: what requests never use.
        independent: what independent tokens miss.
    """

    observed: ObservedAsleep
    independent: IndependentAsleep
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        return self.observed.evaluate(weights) - self.independent.evaluate(weights)

    def influence(self) -> Array:
        """Return the difference of both influences."""
        return self.observed.influence() - self.independent.influence()
