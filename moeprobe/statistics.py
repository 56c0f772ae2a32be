"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that takes them for so
covers about half as often as it says. A resample draws whole images with replacement; it is written as a weight per
image, so that any statistic of sums becomes a product ``sums @ weights`` and all resamples run at once. The weights
belong to (seed, resample), not to a checkpoint: differences between checkpoints are therefore paired.

Axes: R resamples, n images, U (stratum, code) cells that occur on both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe import proportions
from moeprobe.seeds import generator

Array = NDArray[np.float64]

NUM_RESAMPLES = 2000
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


@dataclass(frozen=True)
class Share(Ratio):
    """A ratio whose numerator is between 0 and the denominator in every image."""

    def bounds(self, images: int) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        share = float(self.numerator.sum() / self.denominator.sum())
        return proportions.score_interval(share, standard_error(self.influence(), images), images)

    def swing(self) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Whether every image is right or wrong as a whole."""
        return bool(np.isin(self.numerator, (0, 1)).all() and self.denominator.max() <= 1)


def standard_error(influence: Array, images: int) -> float:
    """Return the standard error over images that the influences ``(n,)`` come to, by the delta method."""
    return float(np.sqrt(images / (images - 1) * np.square(influence).sum()))


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
        match, chance = self.match.influence(), self.chance.influence()
        once = np.ones((len(match), 1))
        kappa, level = self.evaluate(once)[0], self.chance.evaluate(once)[0]
        return (match - (1 - kappa) * chance) / (np.nan if np.isnan(kappa) else 1 - level)

    def bounds(self, images: int) -> tuple[float, float]:
        """Return the κ of the ends of a score interval of m, whose error is that of κ: chance varies too."""
        once = np.ones((len(self.influence()), 1))
        match, chance = (float(side.evaluate(once)[0]) for side in (self.match, self.chance))
        error = standard_error(self.influence(), images) * (1 - chance)
        low, high = proportions.score_interval(match, error, images)
        return (low - chance) / (1 - chance), (high - chance) / (1 - chance)

    def swing(self) -> float:
        """Return by how much a match of one moves it."""
        return 1 / (1 - float(self.chance.evaluate(np.ones((len(self.influence()), 1)))[0]))

    def is_binary(self) -> bool:
        """Whether every image matches or does not as a whole."""
        return isinstance(self.match, Share) and self.match.is_binary()


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
        bounds: interval of a share, or of what follows from one; None = that of the resamples.
        swing: by how much a share of one would move it; 0 where it follows from no share.
        grain: by how much one image moves it where an image is a single trial, right or wrong; else 0.
    """

    point: float
    values: Array
    images: int
    trials: int
    bounds: tuple[float, float] | None = None
    swing: float = 0.0
    grain: float = 0.0

    def minus(self, other: "Replicates") -> "Replicates":
        """Return the difference; paired, because both saw the same resamples of the same images."""
        both = min(len(self.values), len(other.values))
        return Replicates(
            point=self.point - other.point,
            values=self.values[:both] - other.values[:both],
            images=min(self.images, other.images),
            trials=min(self.trials, other.trials),
            swing=max(self.swing, other.swing),
            grain=max(self.grain, other.grain),
        )

    def interval(self) -> Estimate:
        """Return the 95 % interval; none where over 1 % of the resamples are undefined.

        Of a share it is Wilson's; of anything else, and of differences, the percentiles of the resamples, further out
        for few images. A difference of shares that are the same in every image may still not be 0: as many images could
        have missed the ``proportions.unseen`` share in which they differ. Where an image is right or wrong, so that a
        few images may be all that differ, it is at least t standard errors of one image more to either side.
        """
        if np.isnan(self.point):
            return Estimate(np.nan, np.nan, np.nan, "collapsed" if self.trials else "no_trials")
        if len(self.values) == 0:
            return Estimate(self.point, np.nan, np.nan, "few_images")
        defined = self.values[~np.isnan(self.values)]
        if len(defined) < (1 - MAX_UNDEFINED) * len(self.values):
            return Estimate(self.point, np.nan, np.nan, "unstable")
        if self.bounds is not None:
            return Estimate(self.point, *self.bounds)
        if self.point == 0 and not defined.any():
            reach = self.missed(proportions.critical(self.images))
            return Estimate(self.point, -reach, reach)
        beyond = proportions.tail(self.images)
        low, high = np.quantile(defined, [beyond, 1 - beyond])
        if self.grain:
            error = np.hypot(defined.std() / np.sqrt(1 - 1 / self.images), self.grain)
            reach = proportions.critical(self.images) * error
            low, high = min(low, self.point - reach), max(high, self.point + reach)
        # A value never lies outside its interval, however skewed the resamples are.
        return Estimate(self.point, min(float(low), self.point), max(float(high), self.point))

    def missed(self, critical_value: float) -> float:
        """Return how large a difference could be that showed in no image."""
        return self.swing * proportions.unseen(self.images, critical_value)


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
        found = []
        for statistic, trials in statistics:
            images, point = int(np.count_nonzero(trials)), float(statistic.evaluate(everything)[0])
            replicates = Replicates(
                point=point,
                values=np.empty(self._num_resamples if images >= MIN_IMAGES else 0),
                images=images,
                trials=int(trials.sum()),
            )
            if isinstance(statistic, Share | Kappa) and len(replicates.values) and not np.isnan(point):
                swing = statistic.swing()
                replicates = replace(
                    replicates,
                    bounds=statistic.bounds(images),
                    swing=swing,
                    grain=swing / images if statistic.is_binary() else 0.0,
                )
            found.append(replicates)
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
