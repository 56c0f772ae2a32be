"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that takes them for so
covers about half as often as it says. A resample draws whole images with replacement; it is written as a weight per
image, so that any statistic of sums becomes a product ``sums @ weights`` and all resamples run at once. The weights
belong to (seed, resample), not to a checkpoint: differences between checkpoints are therefore paired.

Axes: R resamples, n images, U (stratum, code) cells that occur on both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.seeds import generator

Array = NDArray[np.float64]

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
# Below this many images a bootstrap over images says little: points only.
MIN_IMAGES = 20
# A larger share of resamples without a value than this: no interval.
MAX_UNDEFINED = 0.01
# Numbers held at a time: image weights, and products with them.
_CHUNK_NUMBERS = 2**24
_BLOCK_NUMBERS = 2**21
# Whole numbers up to here are exact in float32.
_EXACT_SINGLE = 2**24
# A chance level this close to one is one: what is left of it is the rounding of sums, or no measurable choice.
COLLAPSED = 1e-6


class Statistic(Protocol):
    """A number computed from sums per image under weights."""

    def evaluate(self, weights: Array) -> Array:
        """Return the values ``(R,)`` under image weights ``(n, R)``, whole numbers; NaN where there is none."""

    def influence(self) -> Array:
        """Return each image's influence ``(n,)``: the derivative of the value by the image's weight, all weights one.

        It adds up to 0, since only shares matter; the sum of its squares is the variance of the value over images to
        first order (the delta method). NaN where there is no value.
        """


@dataclass(frozen=True)
class Ratio:
    """sum(numerator) / sum(denominator), each ``(n,)``."""

    numerator: Array
    denominator: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the ratio under each set of weights."""
        return divide(self.numerator @ weights, self.denominator @ weights)

    def influence(self) -> Array:
        """Return (numerator − value · denominator) / sum of the denominators."""
        total = self.denominator.sum()
        return divide(self.numerator - divide(self.numerator.sum(), total) * self.denominator, total)


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
    """(m − c) / (1 − c): the match beyond chance. NaN where c = 1 (the routing has collapsed)."""

    match: Statistic
    chance: Statistic

    def evaluate(self, weights: Array) -> Array:
        """Return κ under each set of weights."""
        match, chance = self.match.evaluate(weights), self.chance.evaluate(weights)
        return divide(match - chance, room(chance))

    def influence(self) -> Array:
        """Return (dm − (1 − κ) dc) / (1 − c)."""
        match, chance = self.match.influence(), self.chance.influence()
        once = np.ones((len(match), 1))
        kappa, level = self.evaluate(once)[0], self.chance.evaluate(once)[0]
        return (match - (1 - kappa) * chance) / (np.nan if np.isnan(kappa) else 1 - level)


@dataclass(frozen=True)
class Entropy:
    """Entropy of the pooled histogram ``(n, E)``, divided by log E: 1 = all experts equally used, 0 = one expert.

    The entropy of n images' histogram is too low on average: by ½ Σ_e Var(p_e) / p_e, the second order of its
    expansion (Miller 1955, where every image is one token). That is added, as it follows from the images under their
    weights, hence twice in a resample, whose shares vary about those of the sample as these do about the true ones.
    """

    histogram: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the normalised entropy under each set of weights, 1 at most."""
        counts = self.histogram.T @ weights
        total = counts.sum(0)
        share = divide(counts, total)
        terms = np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0)
        squares, square = self._squares(weights**2)
        lacking = (divide(squares, counts * total, empty=0.0).sum(0) - divide(square, total**2)) / 2
        entropy = (lacking - terms.sum(0)) / self._log_experts
        return np.where(total > 0, np.clip(entropy, 0.0, 1.0) + 0.0, np.nan)

    def influence(self) -> Array:
        """Return the derivative, before it is cut off at 1."""
        counts = self.histogram.sum(0)
        total = counts.sum()
        share = divide(counts, total)
        own = self.histogram.sum(1)
        spread = (self.histogram - own[:, None] * share) @ np.log(np.where(share > 0, share, 1.0))
        squares, square = (found[..., 0] for found in self._squares(np.ones((len(own), 1))))
        # Of Σ_e Q_e / (N C_e) − Q / N², with C and Q the experts' sums of h and of h².
        rate = divide(np.ones_like(counts), counts * total, empty=0.0)
        lacking = 2 * self.histogram**2 @ rate - self.histogram @ (squares * divide(rate, counts, empty=0.0))
        lacking -= own * divide(squares @ rate, total)
        lacking -= divide(2 * own**2, total**2) - divide(2 * own * square, total**3)
        return (lacking / 2 - divide(spread, total)) / self._log_experts

    @property
    def _log_experts(self) -> float:
        return float(np.log(max(self.histogram.shape[1], 2)))

    def _squares(self, weights: Array) -> tuple[Array, Array]:
        """Return Σ_i w_i h_ie² ``(E, R)`` and Σ_i w_i (Σ_e h_ie)² ``(R,)``."""
        return (self.histogram**2).T @ weights, self.histogram.sum(1) ** 2 @ weights


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; NaN where there is none. ``flag`` says why.

    collapsed: chance is 1, so κ does not exist; no_trials: there was nothing to count; few_images: under 20;
    unstable: over 1 % of the resamples are undefined.
    """

    value: float
    low: float
    high: float
    flag: str = ""


@dataclass(frozen=True)
class Replicates:
    """A statistic of all images, and of each resample ``(R,)`` (none where there are too few images).

    Attributes:
        images: number of images with at least one trial.
        trials: the statistic's denominator over all images.
    """

    point: float
    values: Array
    images: int
    trials: int

    def minus(self, other: "Replicates") -> "Replicates":
        """Return the difference; paired, because both saw the same resamples of the same images."""
        both = min(len(self.values), len(other.values))
        return Replicates(
            point=self.point - other.point,
            values=self.values[:both] - other.values[:both],
            images=min(self.images, other.images),
            trials=min(self.trials, other.trials),
        )

    def interval(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the percentile interval; none where over 1 % of the resamples are undefined."""
        if np.isnan(self.point):
            return Estimate(np.nan, np.nan, np.nan, "collapsed" if self.trials else "no_trials")
        if len(self.values) == 0:
            return Estimate(self.point, np.nan, np.nan, "few_images")
        defined = self.values[~np.isnan(self.values)]
        if len(defined) < (1 - MAX_UNDEFINED) * len(self.values):
            return Estimate(self.point, np.nan, np.nan, "unstable")
        low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Estimate(self.point, float(low), float(high))


class Bootstrap:
    """Resamples of ``num_images`` images, the same for every statistic and every checkpoint."""

    def __init__(self, num_images: int, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> None:
        self._num_images = num_images
        self._seed = seed
        self._num_resamples = num_resamples if num_images >= MIN_IMAGES else 0
        self._rows = max(1, _CHUNK_NUMBERS // max(num_images, 1))
        self._kept: Array | None = None

    def replicate(self, statistics: Sequence[tuple[Statistic, NDArray[np.generic]]]) -> list[Replicates]:
        """Evaluate statistics, each with its trials per image ``(n,)``, on all images and on each resample.

        A statistic with trials in fewer than 20 images gets its point only.
        """
        everything = np.ones((self._num_images, 1))
        found = [
            Replicates(
                point=float(statistic.evaluate(everything)[0]),
                values=np.empty(self._num_resamples if np.count_nonzero(trials) >= MIN_IMAGES else 0),
                images=int(np.count_nonzero(trials)),
                trials=int(trials.sum()),
            )
            for statistic, trials in statistics
        ]
        for start, weights in self._chunks():
            for (statistic, _), replicates in zip(statistics, found, strict=True):
                if len(replicates.values):
                    replicates.values[start : start + weights.shape[1]] = statistic.evaluate(weights)
        return found

    def _chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield (first resample, image weights ``(n, r)``), in pieces of bounded memory."""
        if self._num_resamples <= self._rows:
            if self._kept is None:
                self._kept = self._weights(range(self._num_resamples))
            yield 0, self._kept
            return
        for start in range(0, self._num_resamples, self._rows):
            yield start, self._weights(range(start, min(start + self._rows, self._num_resamples)))

    def _weights(self, resamples: range) -> Array:
        """Return how often each image was drawn; a generator per resample, so that no chunking changes a draw."""
        weights = np.empty((self._num_images, len(resamples)))
        for column, resample in enumerate(resamples):
            rng = generator(self._seed, "bootstrap", draw=resample)
            drawn = rng.integers(self._num_images, size=self._num_images)
            weights[:, column] = np.bincount(drawn, minlength=self._num_images)
        return weights


def _renumber(values: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return how many different values there are, and each value's number among them."""
    different, number = np.unique(values, return_inverse=True)
    return len(different), number.reshape(values.shape)


def _counts(
    cell: NDArray[np.int64], cells: NDArray[np.int64], image: NDArray[np.int64], num_images: int
) -> sparse.csr_array:
    """Return how often each of the sorted ``cells`` occurs in each image, ``(U, n)``; mostly never, hence sparse."""
    row = np.searchsorted(cells, cell)
    row = row.clip(max=max(len(cells) - 1, 0))
    there = cells[row] == cell if len(cells) else np.zeros(len(cell), dtype=bool)
    ones = np.ones(int(there.sum()), dtype=np.float32)
    counts = sparse.coo_array((ones, (row[there], image[there])), shape=(len(cells), num_images))
    return sparse.csr_array(counts)


def divide(numerator: Array, denominator: Array, *, empty: float = np.nan) -> Array:
    """Return the quotient, ``empty`` where the denominator is 0."""
    defined = denominator != 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), empty)
