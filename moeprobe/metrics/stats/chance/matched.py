"""The match that a chance level is compared with: over the same trials.

Axes: n images.
"""

from functools import cached_property

import numpy as np

from moeprobe.metrics.stats.chance.counts import Counts
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.totals import ChanceTotals
from moeprobe.metrics.stats.statistic import Array, Integers, Share, divide


class Matched:
    """How alike the two sides' tokens are, over the trials that have a chance level.

    Args:
        chance: that level.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def evaluate(self, weights: Array) -> Array:
        """Return the mean under each set of weights."""
        return self._share.evaluate(weights)

    def totals(self) -> tuple[ChanceTotals, Counts]:
        """Return the counts of chance, and how alike the tokens are by stratum."""
        return self._totals

    @cached_property
    def _totals(self) -> tuple[ChanceTotals, Counts]:
        return self._chance.totals(), self._chance.hits_by_stratum

    def value(self, totals: tuple[ChanceTotals, Counts] | None = None) -> float:
        """Return the mean."""
        counts, hits = self.totals() if totals is None else totals
        return float(divide(hits.values[counts.share > 0].sum(), counts.num_trials))

    def influence(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Array:
        """Return (own sum − value · own trials) / trials, for each image."""
        totals = self.totals() if totals is None else totals
        share = self._of(totals[0])
        return divide(share.numerator - self.value(totals) * share.denominator, totals[0].num_trials)

    def counted_trials(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Integers:
        """Return the trials of each image ``(n,)``."""
        return self._chance.counted_trials(None if totals is None else totals[0])

    def bounds(
        self, totals: tuple[ChanceTotals, Counts] | None, error: float, images: int
    ) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        return self._share.bounds(np.array([self.value(totals), 1.0]), error, images)

    def swing(self, totals: object) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Whether every image matches or does not as a whole."""
        return self._share.is_binary()

    @cached_property
    def _share(self) -> Share:
        return self._of(None)

    def _of(self, totals: ChanceTotals | None) -> Share:
        trials, rows = self._chance.trials, self._chance.has_others(totals)
        if rows is None:
            return Share(trials.hits_of_image, trials.number.astype(np.float64))
        hits, number = (
            np.bincount(trials.image[rows], weights=weights, minlength=trials.num_images)
            for weights in (trials.hits[rows], None)
        )
        return Share(hits.astype(np.float64), number.astype(np.float64))
