"""Which images were sampled together: intervals count units, and every value stays what it is.

Images of one patient, frames of one video and requests of one hour are not independent. A resample then draws whole
units: an image's weight is how often its unit was drawn. An influence on a value adds up within a unit, and the
standard error is over units. Values and chance levels are of the same images as without units, except where a level is
fitted on other units (``UNIT_NUMBER``).

Sources: resamples of whole clusters, Davison and Hinkley 1997 (section 3.8); variance of linearized statistics over
clusters, Binder 1983.

Axes: n images, U units, R resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.metrics.stats.statistic import Array, Integers

# The column of the number of each image's unit, where units were sampled.
UNIT_NUMBER = "unit_number"


@dataclass(frozen=True)
class Units:
    """The unit of each image.

    Six images of two patients: the second patient has one image more, and its influences add up to 0.5:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.units import Units
    >>> units = Units(np.array([0, 0, 1, 1, 1]), num_units=2)
    >>> units.add_up(np.array([-0.2, -0.3, 0.1, 0.1, 0.3])).tolist(), units.count(np.array([4, 4, 0, 0, 0]))
    ([-0.5, 0.5], 1)

    Attributes:
        number: of each image's unit ``(n,)``; None = every image is one.
        num_units: U.
    """

    number: Integers | None
    num_units: int

    @classmethod
    def of(cls, image_ids: Sequence[str], unit_of: Mapping[str, str] | None) -> Self:
        """Return the units of images, numbered in the order of their names; ``unit_of`` None = the images.

        Raises:
            UserError: an image has no unit.
        """
        if unit_of is None:
            return cls(None, len(image_ids))
        if lacking := [name for name in image_ids if name not in unit_of]:
            raise UserError(
                f"Nothing says the unit of {lacking[0]!r}; add it to the file in {option('unit')}."
            )
        names, number = np.unique([unit_of[name] for name in image_ids], return_inverse=True)
        return cls(number, len(names))

    def columns(self) -> dict[str, Integers]:
        """Return the column ``UNIT_NUMBER``, to fit numbers on other units; nothing where images are the units."""
        return {} if self.number is None else {UNIT_NUMBER: self.number}

    def take(self, rows: NDArray[np.generic] | slice) -> Units:
        """Return the units of some of the images; there are as many units as before."""
        assert self.number is not None
        return Units(self.number[rows], self.num_units)

    def spread(self, weights: Array) -> Array:
        """Return the weights of images ``(n, R)``, each the weight of its unit ``(U, R)``."""
        return weights if self.number is None else weights[self.number]

    def add_up(self, values: Array) -> Array:
        """Return the sums ``(U,)`` of the values of each unit's images ``(n,)``."""
        if self.number is None:
            return values
        return np.bincount(self.number, weights=values, minlength=self.num_units).astype(np.float64)

    def count(self, trials: NDArray[np.generic]) -> int:
        """Return how many units have an image with trials ``(n,)``."""
        if self.number is None:
            return int(np.count_nonzero(trials))
        return len(np.unique(self.number[trials != 0]))
