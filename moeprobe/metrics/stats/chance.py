"""The match that chance alone would reach, and what is left of a match beyond it (kappa).

Axes: R resamples, n images, M trials, U (stratum, code) cells that occur on both sides.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.bootstrap import Array, Share, Statistic, divide, standard_error

# Numbers held at a time: products of counts and image weights.
_BLOCK_NUMBERS = 2**21
# Whole numbers up to here are exact in float32.
_EXACT_SINGLE = 2**24
# A chance level this close to one is one: what is left of it is the rounding of sums, or no measurable choice.
COLLAPSED = 1e-6


class Chance:
    """The match that independent draws with the two sides' own marginals would reach, within strata.

    c = Σ_s (N_s / N) Σ_code p_A(code | s) p_B(code | s), with N_s the trials in stratum s. One stratum gives the
    pooled null; the patch position as stratum gives the position null, the class of the image the class null.

    It is estimated from pairs of two images, i ≠ j: the plain product of the two marginals pairs an image with itself
    too, which makes it too high by about (m − c) / n, and by twice that in a resample, where images have copies.

    Args:
        image: ``(M,)`` image number of each trial.
        reference: ``(M,)`` what the reference chose, as an integer code.
        view: ``(M,)`` what the view chose, in the same code.
        stratum: ``(M,)`` stratum of each trial.
        num_images: n.
    """

    def __init__(
        self,
        *,
        image: NDArray[np.int64],
        reference: NDArray[np.int64],
        view: NDArray[np.int64],
        stratum: NDArray[np.int64],
        num_images: int,
    ) -> None:
        num_strata, stratum = _renumber(stratum)
        num_codes, code = _renumber(np.concatenate([reference, view]))
        cell = (stratum * num_codes + code.reshape(2, -1)).reshape(2, len(image))
        both = np.intersect1d(np.unique(cell[0]), np.unique(cell[1]), assume_unique=True)
        self._reference, self._view = (_counts(side, both, image, num_images) for side in cell)
        self._trials = _counts(stratum, np.arange(num_strata), image, num_images)
        self._stratum_of_cell = both // max(num_codes, 1)
        # Pairs of an image with itself, and those of them that agree, per stratum and image.
        self._own_pairs = self._trials.multiply(self._trials).astype(np.float64)
        ones = np.ones(len(both), dtype=np.float32)
        gather = sparse.csr_array(
            (ones, (self._stratum_of_cell, np.arange(len(both)))), shape=(num_strata, len(both))
        )
        self._own_hits = gather @ self._reference.astype(np.float64).multiply(self._view)
        # No count under weights that add up to n exceeds this.
        largest = float(self._trials.data.max(initial=0.0)) * num_images
        self._dtype = np.float32 if largest < _EXACT_SINGLE else np.float64
        # Chance and kappa ask for the same resamples one after the other; the product is the expensive part.
        self._last: tuple[Array, Array] | None = None

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        if self._last is None or self._last[0] is not weights:
            self._last = weights, self._evaluate(weights)
        return self._last[1]

    def _evaluate(self, weights: Array) -> Array:
        squared = weights**2
        weights = np.ascontiguousarray(weights, dtype=self._dtype)
        trials = (self._trials @ weights).astype(np.float64)
        # N_s over the number of pairs: N_s², less the pairs of an image with itself (and with its own copies).
        share = divide(trials, trials**2 - self._own_pairs @ squared, empty=0.0)
        agreement = -(share * (self._own_hits @ squared)).sum(0)
        rows = max(1, _BLOCK_NUMBERS // weights.shape[1])
        for start in range(0, len(self._stratum_of_cell), rows):
            block = slice(start, start + rows)
            # Counts of cells by images, times contiguous rows of weights: scipy's fast way round.
            products = (self._reference[block] @ weights).astype(np.float64)
            products *= self._view[block] @ weights
            products *= share[self._stratum_of_cell[block]]
            agreement += products.sum(0)
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(divide(agreement, (trials * (share > 0)).sum(0)), 0.0, 1.0)

    def influence(self) -> Array:
        """Return the derivative of c = Σ_s (N_s / P_s) Q_s / Σ_s N_s; P_s counts the pairs, Q_s those that agree."""
        once = np.ones(self._trials.shape[1])
        trials = self._trials @ once
        pairs = trials**2 - self._own_pairs @ once
        share = divide(trials, pairs, empty=0.0)
        used = trials * (share > 0)
        counts = self._reference @ once, self._view @ once
        agree = np.bincount(self._stratum_of_cell, weights=counts[0] * counts[1], minlength=len(trials))
        agree = agree - self._own_hits @ once
        value = divide((share * agree).sum(), used.sum(), empty=0.0)
        # Transposed matrices times one number per stratum or cell: what each image adds to every count at once.
        of_cell = share[self._stratum_of_cell]
        rate = divide(agree, pairs, empty=0.0)
        found = self._trials.T @ ((1 - 2 * share * trials) * rate - value * (share > 0))
        found += self._reference.T @ (of_cell * counts[1]) + self._view.T @ (of_cell * counts[0])
        found += 2 * (self._own_pairs.T @ (share * rate) - self._own_hits.T @ share)
        return divide(found, used.sum())


def room(chance: Array) -> Array:
    """Return 1 − c, and exactly 0 where chance is as good as one: the routing has collapsed, by whatever measure."""
    return np.where(chance > 1 - COLLAPSED, 0.0, 1 - chance)


@dataclass(frozen=True)
class Kappa:
    """(m − c) / (1 − c): the match m, a share, beyond chance. NaN where c = 1 (the routing has collapsed)."""

    match: Statistic
    chance: Statistic

    def evaluate(self, weights: Array) -> Array:
        """Return κ under each set of weights."""
        match, chance = self.match.evaluate(weights), self.chance.evaluate(weights)
        return divide(match - chance, room(chance))

    def influence(self) -> Array:
        """Return (dm − (1 − κ) dc) / (1 − c)."""
        return self._influence

    @cached_property
    def _influence(self) -> Array:
        match, chance = self.match.influence(), self.chance.influence()
        once = np.ones((len(match), 1))
        kappa, level = self.evaluate(once)[0], self.chance.evaluate(once)[0]
        return (match - (1 - kappa) * chance) / (np.nan if np.isnan(kappa) else 1 - level)

    @cached_property
    def _level(self) -> float:
        """The level of chance over all images."""
        return float(self.chance.evaluate(np.ones((len(self._influence), 1)))[0])

    def bounds(self, images: int) -> tuple[float, float]:
        """Return the κ of the ends of a score interval of m, whose error is that of κ: chance varies too."""
        match, chance = float(self.match.evaluate(np.ones((len(self._influence), 1)))[0]), self._level
        error = standard_error(self._influence, images) * (1 - chance)
        low, high = proportions.score_interval(match, error, images)
        return (low - chance) / (1 - chance), (high - chance) / (1 - chance)

    def swing(self) -> float:
        """Return by how much a match of one moves it."""
        return 1 / (1 - self._level)

    def is_binary(self) -> bool:
        """Whether every image matches or does not as a whole."""
        return isinstance(self.match, Share) and self.match.is_binary()


def _renumber(values: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return how many different values there are, and each value's number among them."""
    different, number = np.unique(values, return_inverse=True)
    return len(different), number.reshape(values.shape)


def _counts(
    cell: NDArray[np.int64], cells: NDArray[np.int64], image: NDArray[np.int64], num_images: int
) -> sparse.csr_array:
    """Return how often each of the sorted ``cells`` occurs in each image, ``(U, n)``; mostly never, so sparse."""
    row = np.searchsorted(cells, cell)
    row = row.clip(max=max(len(cells) - 1, 0))
    there = cells[row] == cell if len(cells) else np.zeros(len(cell), dtype=bool)
    ones = np.ones(int(there.sum()), dtype=np.float32)
    counts = sparse.coo_array((ones, (row[there], image[there])), shape=(len(cells), num_images))
    return sparse.csr_array(counts)


@dataclass(frozen=True)
class Complement:
    """1 − a statistic: a distance of a similarity, and the other way round."""

    of: Statistic

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        return 1 - self.of.evaluate(weights)

    def influence(self) -> Array:
        """Return the other's, with its sign changed."""
        return -self.of.influence()


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

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        own = weights**2
        product = ((self.x.T @ weights) * (self.y.T @ weights)).sum(0) - (self.x * self.y).sum(1) @ own
        return divide(product, (self.s @ weights) * (self.t @ weights) - (self.s * self.t) @ own)

    def influence(self) -> Array:
        """Return the derivative of the ratio of the two sums over pairs of images."""
        own, both = (self.x * self.y).sum(1), self.s * self.t
        product = self.x.sum(0) @ self.y.sum(0) - own.sum()
        pairs = self.s.sum() * self.t.sum() - both.sum()
        of_product = self.x @ self.y.sum(0) + self.y @ self.x.sum(0) - 2 * own
        of_pairs = self.s * self.t.sum() + self.t * self.s.sum() - 2 * both
        return divide(of_product - divide(product, pairs) * of_pairs, pairs)
