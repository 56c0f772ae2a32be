"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that treats them as
independent covers the truth about half as often as it claims. A resample draws whole images with replacement; it is
written as a weight per image, so that any statistic of sums becomes a product ``sums @ weights`` and all resamples run
at once. The weights belong to (seed, resample), not to a checkpoint: differences between checkpoints are therefore
paired.

Axes: R resamples, n images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.arrays import Array
from moeprobe.metrics.stats.replicates import MIN_IMAGES, Replicates, bounded
from moeprobe.metrics.stats.statistic import Share, Statistic, flag_of, is_bounded, standard_error
from moeprobe.runtime.seeds import generator

NUM_RESAMPLES = 2000
# Image weights held at a time.
_CHUNK_NUMBERS = 2**24


class Bootstrap:
    """Resamples of ``num_images`` images, the same for every statistic and every checkpoint."""

    def __init__(self, num_images: int, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> None:
        self._num_images = num_images
        self._seed = seed
        self._num_resamples = num_resamples if num_images >= MIN_IMAGES else 0
        self._rows = max(1, _CHUNK_NUMBERS // max(num_images, 1))
        self._kept: Array | None = None

    def replicate(
        self, statistics: Sequence[tuple[Statistic, NDArray[np.generic]]], *, paired: bool = True
    ) -> list[Replicates]:
        """Evaluate statistics, each with its trials per image ``(n,)``, on all images and on each resample.

        A statistic with trials in fewer than 20 images gets its point only. Without ``paired``, that is where no
        difference follows, shares are not resampled: their intervals do not need it.
        """
        everything = np.ones((self._num_images, 1))
        results = []
        for statistic, trials in statistics:
            images, point = int(np.count_nonzero(trials)), float(statistic.evaluate(everything)[0])
            replicates = Replicates(
                point=point,
                values=np.empty(self._num_resamples if images >= MIN_IMAGES else 0),
                images=images,
                trials=int(trials.sum()),
                undefined=flag_of(statistic),
            )
            if is_bounded(statistic) and len(replicates.values) and not np.isnan(point):
                error, binary = standard_error(statistic.influence(), images), statistic.is_binary()
                replicates = bounded(replicates, statistic, totals=None, error=error, binary=binary)
                if isinstance(statistic, Share) and not paired and _is_always_defined(statistic):
                    replicates = replace(replicates, values=np.empty(0))
            results.append(replicates)
        for start, weights in self._chunks():
            for (statistic, _), replicates in zip(statistics, results, strict=True):
                if len(replicates.values):
                    replicates.values[start : start + weights.shape[1]] = statistic.evaluate(weights)
        return results

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
            images = rng.integers(self._num_images, size=self._num_images)
            weights[:, column] = np.bincount(images, minlength=self._num_images)
        return weights


def _is_always_defined(share: Share) -> bool:
    """Return whether a share exists in every resample: of 20 images, practically one at least is always drawn."""
    return int(np.count_nonzero(share.denominator)) >= MIN_IMAGES
