"""Within what chance is drawn: all trials, those at one patch position, those of images of one class.

Axes: M trials (pairs of tokens).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]

# Strata are below this.
STRATA = 2**24


@dataclass(frozen=True)
class Strata:
    """The stratum of each trial.

    Attributes:
        number: ``(M,)`` its number.
        size: numbers are below this.
        single: whether an image has one trial in a stratum at most.
    """

    number: Whole
    size: int = STRATA
    single: bool = False

    def take(self, rows: NDArray[np.generic]) -> "Strata":
        """Return those of some of the trials."""
        return Strata(self.number[rows], self.size, self.single)


def undivided(num_trials: int) -> Strata:
    """Return one stratum that holds all trials."""
    return Strata(np.zeros(num_trials, dtype=np.int64), size=1)
