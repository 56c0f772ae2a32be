"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that takes them for so
covers about half as often as it says. A resample draws whole images with replacement; it is written as a weight per
image, so that any statistic of sums becomes a product ``weights @ sums`` and all resamples run at once. The weights
belong to (seed, resample), not to a checkpoint: differences between checkpoints are therefore paired.

Axes: R resamples, n images, U occupied (stratum, code) cells.
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
_CHUNK_NUMBERS = 2**24


class Statistic(Protocol):
    """A number computed from sums per image under weights."""

    def evaluate(self, weights: Array) -> Array:
        """Return the values ``(R,)`` under image weights ``(R, n)``; NaN where there is none."""


@dataclass(frozen=True)
class Ratio:
    """sum(numerator) / sum(denominator), each ``(n,)``."""

    numerator: Array
    denominator: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the ratio under each set of weights."""
        return _divide(weights @ self.numerator, weights @ self.denominator)


class Chance:
    """The match that independent draws with the two sides' own marginals would reach, within strata.

    c = Σ_s (N_s / N) Σ_code p_A(code | s) p_B(code | s), with N_s the trials in stratum s. One stratum gives the
    pooled null; the patch position as stratum gives the position null.

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
        strata, stratum = np.unique(stratum, return_inverse=True)
        codes, code = np.unique(np.concatenate([reference, view]), return_inverse=True)
        cell = code + len(codes) * np.concatenate([stratum, stratum])
        cells, cell = np.unique(cell, return_inverse=True)
        self._reference = _counts(image, cell[: len(image)], num_images, len(cells))
        self._view = _counts(image, cell[len(image) :], num_images, len(cells))
        self._trials = _counts(image, stratum, num_images, len(strata))
        self._stratum_of_cell = cells // max(len(codes), 1)
        # Chance and kappa ask for the same resamples one after the other; the product is the expensive part.
        self._last: tuple[Array, Array] | None = None

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        if self._last is None or self._last[0] is not weights:
            self._last = weights, self._evaluate(weights)
        return self._last[1]

    def _evaluate(self, weights: Array) -> Array:
        trials = weights @ self._trials
        agreement = (weights @ self._reference) * (weights @ self._view)
        share = _divide(np.ones_like(trials), trials, empty=0.0)[:, self._stratum_of_cell]
        return _divide((agreement * share).sum(1), trials.sum(1))


@dataclass(frozen=True)
class Kappa:
    """(m − c) / (1 − c): the match beyond chance. NaN where c = 1 (the routing has collapsed)."""

    match: Statistic
    chance: Statistic

    def evaluate(self, weights: Array) -> Array:
        """Return κ under each set of weights."""
        match, chance = self.match.evaluate(weights), self.chance.evaluate(weights)
        return _divide(match - chance, np.where(chance > 1 - 1e-12, 0.0, 1 - chance))


@dataclass(frozen=True)
class Entropy:
    """Entropy of the pooled histogram ``(n, E)``, divided by log E: 1 = all experts equally used, 0 = one expert."""

    histogram: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the normalised entropy under each set of weights."""
        counts = weights @ self.histogram
        share = _divide(counts, counts.sum(1, keepdims=True))
        terms = np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0)
        entropy = -terms.sum(1) / np.log(max(counts.shape[1], 2))
        return np.where(counts.sum(1) > 0, entropy + 0.0, np.nan)


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; NaN where there is none. ``flag`` says why: collapsed, few_images, unstable."""

    value: float
    low: float
    high: float
    flag: str = ""


@dataclass(frozen=True)
class Replicates:
    """A statistic of all images, and of each resample ``(R,)`` (none where there are too few images)."""

    point: float
    values: Array

    def minus(self, other: "Replicates") -> "Replicates":
        """Return the difference; paired, because both saw the same resamples of the same images."""
        return Replicates(self.point - other.point, self.values - other.values)

    def interval(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the percentile interval; none where over 1 % of the resamples are undefined."""
        if np.isnan(self.point):
            return Estimate(np.nan, np.nan, np.nan, "collapsed")
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

    def replicate(self, statistics: Sequence[Statistic]) -> list[Replicates]:
        """Evaluate statistics on all images and on each resample; points only below 20 images."""
        everything = np.ones((1, self._num_images))
        points = [float(statistic.evaluate(everything)[0]) for statistic in statistics]
        values = np.empty((len(statistics), self._num_resamples))
        for start, weights in self._chunks():
            for row, statistic in enumerate(statistics):
                values[row, start : start + len(weights)] = statistic.evaluate(weights)
        return [Replicates(point, row) for point, row in zip(points, values, strict=True)]

    def _chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield (first resample, image weights ``(r, n)``), in pieces of bounded memory."""
        if self._num_resamples <= self._rows:
            if self._kept is None:
                self._kept = self._weights(range(self._num_resamples))
            yield 0, self._kept
            return
        for start in range(0, self._num_resamples, self._rows):
            yield start, self._weights(range(start, min(start + self._rows, self._num_resamples)))

    def _weights(self, resamples: range) -> Array:
        """Return how often each image was drawn; a generator per resample, so that no chunking changes a draw."""
        weights = np.empty((len(resamples), self._num_images))
        for row, resample in enumerate(resamples):
            rng = generator(self._seed, "bootstrap", draw=resample)
            drawn = rng.integers(self._num_images, size=self._num_images)
            weights[row] = np.bincount(drawn, minlength=self._num_images)
        return weights


def _counts(
    row: NDArray[np.int64], column: NDArray[np.int64], num_rows: int, num_columns: int
) -> sparse.csr_array:
    """Return how often each (row, column) occurs; an image fills few of the columns, hence sparse."""
    ones = np.ones(len(row))
    return sparse.csr_array(sparse.coo_array((ones, (row, column)), shape=(num_rows, num_columns)))


def _divide(numerator: Array, denominator: Array, *, empty: float = np.nan) -> Array:
    defined = denominator != 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), empty)
