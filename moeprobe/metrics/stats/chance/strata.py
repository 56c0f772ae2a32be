"""Where chance is drawn: among all trials, at one patch position, or in images of one class.

Axes: M trials (pairs of tokens), n images.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.bootstrap import MAX_UNDEFINED, MIN_IMAGES
from moeprobe.metrics.stats.chance.counts import count
from moeprobe.metrics.stats.statistic import Integers

# Strata are below this.
STRATA = 2**24


@dataclass(frozen=True)
class Strata:
    """The stratum of each trial.

    Attributes:
        number: ``(M,)`` its number.
        size: numbers are below this.
        single: whether an image has one trial in a stratum at most.
        of_sequences: whether they are positions of sequences, which may be of any length.
    """

    number: Integers
    size: int = STRATA
    single: bool = False
    of_sequences: bool = False

    def take(self, rows: NDArray[np.generic]) -> "Strata":
        """Return the strata of some of the trials."""
        return Strata(self.number[rows], self.size, self.single, self.of_sequences)


def are_thin(stratum: Integers, trials: NDArray[np.floating], *, size: int, num_images: int) -> bool:
    """Whether strata of so few images that resamples may lack them hold more than 1 % of the trials.

    Args:
        stratum: of each pair of an image and one of its strata.
        trials: of each such pair. Those of a stratum of one image have no chance level, and do not count.
        size: numbers of strata are below this.
        num_images: n; fewer than ``MIN_IMAGES`` are not resampled.
    """
    if num_images < MIN_IMAGES:
        return False
    of_pair = count(stratum, size).at(stratum)
    thin = trials[(of_pair > 1) & (of_pair < MIN_IMAGES)].sum()
    return bool(thin > MAX_UNDEFINED * trials[of_pair > 1].sum())


def single_stratum(num_trials: int) -> Strata:
    """Return one stratum that holds all trials."""
    return Strata(np.zeros(num_trials, dtype=np.int64), size=1)
