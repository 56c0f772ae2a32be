"""The match that a chance level is held against: over the same trials.

Axes: n images.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.chance import Chance
from moeprobe.metrics.stats.chance_totals import ChanceTotals
from moeprobe.metrics.stats.counts import Counts, count
from moeprobe.metrics.stats.statistic import Array, Share, divide

Whole = NDArray[np.int64]


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
        chance = self._chance
        return chance.totals(), count(chance.strata.number, chance.strata.size, chance.trials.hits)

    def value(self, totals: tuple[ChanceTotals, Counts] | None = None) -> float:
        """Return the mean."""
        counts, hits = self.totals() if totals is None else totals
        return float(divide(hits.values[counts.draws.share > 0].sum(), counts.draws.used))

    def influence(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Array:
        """Return (own sum − value · own trials) / trials, for each image."""
        totals = self.totals() if totals is None else totals
        share = self._of(totals[0])
        return divide(share.numerator - self.value(totals) * share.denominator, totals[0].draws.used)

    def counted(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Whole:
        """Return the trials of each image ``(n,)``."""
        return self._chance.counted(None if totals is None else totals[0])

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
