"""What a chance level follows from, as counts that add up over blocks of images: value, and slopes for influences.

Axes: s strata.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moeprobe.metrics.stats.counts import Counts
from moeprobe.metrics.stats.draws import Draws
from moeprobe.metrics.stats.statistic import Array


@dataclass(frozen=True)
class ChanceTotals:
    """What follows from a block: trials and pairs of tokens by stratum, and codes by stratum and side.

    Attributes:
        trials: N_s, trials of each stratum s.
        own_pairs: pairs of trials of one image.
        own_hits: how alike these are, summed.
        codes: for each of ``Alike`` its weight, its number of codes, and how often either side has each code.
    """

    trials: Counts
    own_pairs: Counts
    own_hits: Counts
    codes: tuple[tuple[float, int, Counts, Counts], ...]

    def __add__(self, other: ChanceTotals) -> ChanceTotals:
        """Return the totals of both."""
        return ChanceTotals(
            self.trials + other.trials,
            self.own_pairs + other.own_pairs,
            self.own_hits + other.own_hits,
            tuple(
                (weight, size, left + left_too, right + right_too)
                for (weight, size, left, right), (_, _, left_too, right_too) in zip(
                    self.codes, other.codes, strict=True
                )
            ),
        )

    @cached_property
    def draws(self) -> Draws:
        """What can be drawn from each stratum."""
        return Draws(self.trials.values, self.own_pairs.values)

    @cached_property
    def value(self) -> float:
        """The chance level."""
        return self.draws.level(self._alike)

    @cached_property
    def slopes(self) -> tuple[Array, Array, list[tuple[Array, Array]]]:
        """Derivatives of c · Σ N by a trial, by a pair of trials of one image, and by a code on either side."""
        of_codes = []
        for weight, size, reference, view in self.codes:
            sides = []
            for own, other in ((reference, view), (view, reference)):
                keys = own.every_key()
                sides.append(weight * self.trials.at(keys // size, self.draws.share) * other.at(keys))
            of_codes.append((sides[0], sides[1]))
        return *self.draws.slopes(self._alike), of_codes

    @cached_property
    def _alike(self) -> Array:
        alike = -self.own_hits.values
        place = Counts(np.arange(len(self.trials.values), dtype=np.float64), self.trials.keys)
        for weight, size, reference, view in self.codes:
            keys = reference.every_key()
            stratum = place.at(keys // size).astype(np.int64)
            alike = alike + weight * np.bincount(
                stratum, weights=reference.values * view.at(keys), minlength=len(alike)
            )
        return alike
