"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that takes them for so
covers about half as often as it says. A resample draws whole images with replacement; it is written as a weight per
image, so that any statistic of sums becomes a product ``sums @ weights`` and all resamples run at once. The weights
belong to (seed, resample), not to a checkpoint: differences between checkpoints are therefore paired.

Axes: R resamples, n images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats import proportions
from moeprobe.runtime.seeds import generator

Array = NDArray[np.float64]

NUM_RESAMPLES = 2000
# Below this many images a bootstrap over images says little: points only.
MIN_IMAGES = 20
# A larger share of resamples without a value than this: no interval.
MAX_UNDEFINED = 0.01
# Image weights held at a time.
_CHUNK_NUMBERS = 2**24


class Statistic(Protocol):
    """A number computed from sums per image under weights."""

    def evaluate(self, weights: Array) -> Array:
        """Return the values ``(R,)`` under image weights ``(n, R)``, whole numbers; NaN where there is none."""

    def influence(self) -> Array:
        """Return each image's influence ``(n,)``: the derivative of the value by the image's weight, all weights one.

        It adds up to 0, since only shares matter; the sum of its squares is the variance of the value over images to
        first order (the delta method). NaN where there is no value.
        """


@runtime_checkable
class Bounded(Statistic, Protocol):
    """A statistic that follows from shares of images, whose interval knows how far these can be from what was seen."""

    def bounds(self, images: int) -> tuple[float, float] | None:
        """Return its interval over ``images``; None = that of the resamples."""

    def swing(self) -> float:
        """Return by how much a share of one moves it."""

    def is_binary(self) -> bool:
        """Return whether every image is right or wrong as a whole."""


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


@dataclass(frozen=True)
class Contrast(Ratio):
    """A weighted difference of shares: in no image is the numerator further from 0 than ``most`` denominators."""

    most: float

    def bounds(self, images: int) -> None:
        """Return None: it is around 0, where resamples vary to both sides."""

    def swing(self) -> float:
        """Return the largest value in one image."""
        return self.most

    def is_binary(self) -> bool:
        """Whether it is of images that are right or wrong as a whole; contrasts go by halves of them."""
        return bool((2 * self.numerator % 1 == 0).all() and self.denominator.max() <= 1)


def standard_error(influence: Array, images: int) -> float:
    """Return the standard error over images that the influences ``(n,)`` come to, by the delta method."""
    return float(np.sqrt(images / (images - 1) * np.square(influence).sum()))


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
        swing: by how much a share of one would move it, or the largest contrast in an image; 0 where it follows from
            no share.
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
            return Estimate(self.point, 0.0 - reach, reach)
        beyond = proportions.tail(self.images)
        low, high = np.quantile(defined, [beyond, 1 - beyond])
        if self.grain:
            error = np.hypot(defined.std() / np.sqrt(1 - 1 / self.images), self.grain)
            reach = proportions.critical(self.images) * error
            low, high = min(low, self.point - reach), max(high, self.point + reach)
        # A value is never outside its interval, however skewed the resamples are.
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
            if isinstance(statistic, Bounded) and len(replicates.values) and not np.isnan(point):
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


def divide(numerator: Array, denominator: Array, *, empty: float = np.nan) -> Array:
    """Return the quotient, ``empty`` where the denominator is 0."""
    defined = denominator != 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), empty)
