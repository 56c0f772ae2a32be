"""What is left of a match beyond chance, the opposite of a statistic, and the chance level of a product.

Axes: R resamples, n images, F entries of a vector.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.statistic import (
    Array,
    Statistic,
    Totals,
    counted_trials,
    divide,
    is_additive,
    is_bounded,
)
from moeprobe.runtime.caching import cache_last

# A chance level this close to one is one: what is left of it is the rounding of sums, or no measurable choice.
COLLAPSED = 1e-6


def room(chance: Any) -> Array:
    """Return 1 − c, and exactly 0 where chance is as good as one: the routing has collapsed, by whatever measure.

    >>> from moeprobe.metrics.stats.kappa import room
    >>> float(room(0.75)), float(room(1 - 1e-9))
    (0.25, 0.0)
    """
    return np.where(chance > 1 - COLLAPSED, 0.0, 1 - chance)


@dataclass(frozen=True)
class Kappa:
    """(m − c) / (1 − c): the match m, a share, beyond chance. NaN where c = 1 (the routing has collapsed).

    Six of ten tokens agree, and by chance five would: κ = (0.6 − 0.5) / (1 − 0.5):

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.kappa import Kappa
    >>> from moeprobe.metrics.stats.statistic import Share
    >>> match, chance = (Share(np.array([hits]), np.array([10.0])) for hits in (6.0, 5.0))
    >>> round(Kappa(match, chance).value((match.totals(), chance.totals())), 3)
    0.2
    """

    match: Any
    chance: Any

    @property
    def parts(self) -> tuple[Statistic, ...]:
        """What it is computed from."""
        return self.match, self.chance

    def evaluate(self, weights: Array) -> Array:
        """Return κ under each set of weights."""
        match, chance = self.match.evaluate(weights), self.chance.evaluate(weights)
        return divide(match - chance, room(chance))

    def totals(self) -> Totals:
        """Return the totals of both."""
        return self.match.totals(), self.chance.totals()

    def value(self, totals: Totals) -> float:
        """Return κ."""
        match, chance = self.match.value(totals[0]), self.chance.value(totals[1])
        return float(divide(match - chance, room(chance)))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (dm − (1 − κ) dc) / (1 − c)."""
        match, chance = self._levels(totals)
        kappa = float(divide(match - chance, room(chance)))
        of_match, of_chance = (
            (self.match.influence(), self.chance.influence())
            if totals is None
            else (self.match.influence(totals[0]), self.chance.influence(totals[1]))
        )
        return (of_match - (1 - kappa) * of_chance) / (np.nan if np.isnan(kappa) else 1 - chance)

    def counted_trials(self, totals: Totals | None = None) -> Any:
        """Return the trials of each image ``(n,)``; None = use the estimator's."""
        return counted_trials(self.match, None if totals is None else totals[0])

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return κ at the ends of a score interval of m, with the standard error of κ: chance varies too."""
        match, chance = self._levels(totals)
        low, high = proportions.score_interval(match, error * (1 - chance), images)
        return (low - chance) / (1 - chance), (high - chance) / (1 - chance)

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a match of one moves it."""
        return 1 / (1 - self._levels(totals)[1])

    def is_binary(self) -> bool:
        """Whether every image matches or does not as a whole."""
        return is_bounded(self.match) and self.match.is_binary()

    def _levels(self, totals: Totals | None) -> tuple[float, float]:
        """Return m and c over all images."""
        if totals is not None:
            return self.match.value(totals[0]), self.chance.value(totals[1])
        levels = []
        for part in self.parts:
            if is_additive(part):
                levels.append(part.value(part.totals()))
            else:
                once = np.ones((len(part.influence()), 1))
                levels.append(float(part.evaluate(once)[0]))
        return levels[0], levels[1]


@dataclass(frozen=True)
class Complement:
    """1 − a statistic: a distance of a similarity, and the other way round."""

    of: Any

    @property
    def parts(self) -> tuple[Statistic, ...]:
        """What it is computed from."""
        return (self.of,)

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        return 1 - self.of.evaluate(weights)

    def totals(self) -> Totals:
        """Return the other's."""
        return self.of.totals()

    def value(self, totals: Totals) -> float:
        """Return 1 − the other's."""
        return float(1 - self.of.value(totals))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the other's, with its sign changed."""
        return -(self.of.influence() if totals is None else self.of.influence(totals))


@dataclass(frozen=True)
class MeanProduct:
    """Σ_{i ≠ j} Σ_f x_if y_jf / Σ_{i ≠ j} Σ_g s_ig t_jg: the mean product of vectors from two sides, of two images.

    ``x`` and ``y`` ``(n, F)`` are an image's summed vectors, ``s`` and ``t`` ``(n, G)`` how many they are of, in each
    of G strata that are drawn from apart, ``(n,)`` of one. Images are paired with others only, as in ``levels.Chance``.

    Two images with two tokens each: how many of them have expert 0 and expert 1, on either side. x₀ · y₁ = 0 and
    x₁ · y₀ = 2, so 2 of the 8 pairs of tokens of different images have the same expert:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.kappa import MeanProduct
    >>> x, y, tokens = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([2.0, 2.0])
    >>> float(MeanProduct(x, y, tokens, tokens).evaluate(np.ones((2, 1)))[0])
    0.25
    """

    x: Array
    y: Array
    s: Array
    t: Array

    def __post_init__(self) -> None:
        for name in ("s", "t"):
            counts = getattr(self, name)
            object.__setattr__(self, name, counts.reshape(len(counts), -1))

    @cache_last
    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        squared = weights**2
        product = ((self.x.T @ weights) * (self.y.T @ weights)).sum(0) - (self.x * self.y).sum(1) @ squared
        pairs = ((self.s.T @ weights) * (self.t.T @ weights)).sum(0) - (self.s * self.t).sum(1) @ squared
        return divide(product, pairs)

    def totals(self) -> Totals:
        """Return the sums of x, y, s and t, and the sums of the products of an image with itself."""
        own_products = np.array([(self.x * self.y).sum(), (self.s * self.t).sum()])
        return self.x.sum(0), self.y.sum(0), self.s.sum(0), self.t.sum(0), own_products

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        x, y, s, t, (own_products, own_pairs) = totals
        return float(divide(x @ y - own_products, s @ t - own_pairs))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the derivative of the ratio of the two sums over pairs of images."""
        totals = self.totals() if totals is None else totals
        x, y, s, t, (_, own_pairs) = totals
        product, pairs = (self.x * self.y).sum(1), (self.s * self.t).sum(1)
        of_product = self.x @ y + self.y @ x - 2 * product
        of_pairs = self.s @ t + self.t @ s - 2 * pairs
        return divide(of_product - self.value(totals) * of_pairs, s @ t - own_pairs)
