"""What a chance level follows from, as counts that add up over blocks of images: value, and slopes for influences.

Axes: s strata.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.chance.counts import Counts, Pairs
from moeprobe.metrics.stats.statistic import Array, Integers, divide

# How a chance level follows from the trials of each stratum, the pairs to draw from, and how alike those pairs are.
#
# c = Σ_s (N_s / P_s) Q_s / Σ_s N_s, with N_s the trials of stratum s, P_s its pairs of trials of two
# images, and Q_s how alike the tokens of these pairs are. Strata without such a pair take no part.


@dataclass
class ChanceTotals:
    """What follows from a block: trials and pairs of tokens by stratum, and codes by stratum and side.

    Codes may be millions: they are dropped once the level is known, so nothing can be added any more.

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
                (weight, size, reference + more_reference, view + more_view)
                for (weight, size, reference, view), (_, _, more_reference, more_view) in zip(
                    self.codes, other.codes, strict=True
                )
            ),
        )

    @cached_property
    def pairs(self) -> Array:
        """P_s, the pairs of each stratum that chance draws from."""
        return self.trials.values**2 - self.own_pairs.values

    @cached_property
    def share(self) -> Array:
        """N_s / P_s; 0 where there is no pair."""
        return divide(self.trials.values, self.pairs, empty=0.0)

    @cached_property
    def num_trials(self) -> float:
        """Trials in strata with a pair."""
        return float(self.trials.values[self.share > 0].sum())

    @cached_property
    def value(self) -> float:
        """The chance level c."""
        agreement = self._of_codes[0]
        # Rounding may leave a collapsed router a hair above one.
        return float(np.clip(divide((self.share * agreement).sum(), self.num_trials), 0.0, 1.0))

    @cached_property
    def slopes(self) -> tuple[Array, Array, list[Pairs]]:
        """Derivatives of c · Σ N by a trial, by a pair of trials of one image, and by a code on either side.

        The last are still to be multiplied by the share of the stratum and the weight of the codes.
        """
        agreement, of_codes = self._of_codes
        rate = divide(agreement, self.pairs, empty=0.0)
        in_all = np.nan_to_num(self.value) * (self.share > 0)
        of_trial = (1 - 2 * self.share * self.trials.values) * rate - in_all
        return of_trial, self.share * rate, of_codes

    @cached_property
    def _of_codes(self) -> tuple[Array, list[Pairs]]:
        """How alike the pairs of each stratum are, and the slopes of the codes."""
        similarity, slopes = -self.own_hits.values, []
        trials = self.trials
        index = np.arange(len(similarity), dtype=np.float64)
        codes, self.codes = list(self.codes), ()
        while codes:
            # Millions of codes are not held beside what follows from them.
            weight, size, keys, reference, view = _common(*codes.pop(0))
            strata = (np.arange(len(reference)) if keys is None else keys) // size
            number = strata if trials.keys is None else trials.at(strata, index).astype(np.int64)
            similarity = similarity + weight * np.bincount(
                number, weights=np.multiply(reference, view, dtype=np.float64), minlength=len(similarity)
            )
            del strata, number
            slopes.append(Pairs(view, reference, keys))
        return similarity, slopes


def _common(
    weight: float, size: int, reference: Counts, view: Counts
) -> tuple[float, int, Integers | None, NDArray[Any], NDArray[Any]]:
    """Return weight, number of codes, the keys that both sides have, None = all, and how often each side has them."""
    if reference.keys is None or view.keys is None:
        return weight, size, None, reference.values, view.values
    index = np.searchsorted(reference.keys, view.keys)
    is_known = index < len(reference.keys)
    is_known[is_known] = reference.keys[index[is_known]] == view.keys[is_known]
    return weight, size, view.keys[is_known], reference.take(index[is_known]), view.take(is_known)
