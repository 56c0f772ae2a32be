"""A number of pairs of trainings, over all pairs of a set: with its uncertainty over images and over trainings.

Axes: n images, S trainings, p pairs of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.proportions import critical
from moeprobe.metrics.stats.statistic import standard_error

Pair = tuple[int, int]
# Trainings below which nothing is said of trainings.
FEWEST = 3


@dataclass(frozen=True)
class Quantity:
    """A number of a pair of trainings, with the influence of each image ``(n,)``."""

    value: float
    influence: NDArray[np.float64]

    def minus(self, subtracted: "Quantity") -> "Quantity":
        """Return the difference."""
        return Quantity(self.value - subtracted.value, self.influence - subtracted.influence)

    def over(self, divisor: "Quantity") -> "Quantity":
        """Return the ratio."""
        if divisor.value == 0:
            return Quantity(np.nan, np.full_like(self.influence, np.nan))
        value = self.value / divisor.value
        return Quantity(value, (self.influence - value * divisor.influence) / divisor.value)


@dataclass(frozen=True)
class SetShare:
    """A share over all pairs of a set of trainings.

    Images and trainings are both samples, and crossed: their variances add up.

    Three trainings, whose pairs have 0.6, 0.7 and 0.8. Without one of them a single pair is left, 0.8, 0.7 or 0.6,
    with a variance of 0.02 / 3; the jackknife takes S − 1 times that:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.training_pairs import Quantity, SetShare
    >>> values = {(0, 1): 0.6, (0, 2): 0.7, (1, 2): 0.8}
    >>> share = SetShare.over_pairs({pair: Quantity(value, np.zeros(1)) for pair, value in values.items()})
    >>> round(share.value, 3), round(share.variance, 4)
    (0.7, 0.0133)

    Attributes:
        value: the mean over all pairs.
        influence: of each image on it ``(n,)``.
        variance: over trainings, by the jackknife, which leaves out one training with all of its pairs.
        trainings: S; of a difference the fewer.
    """

    value: float
    influence: NDArray[np.float64]
    variance: float
    trainings: int

    @classmethod
    def over_pairs(cls, quantities: Mapping[Pair, Quantity]) -> Self:
        """Return the share of a set by the quantities of all of its pairs."""
        trainings = sorted({training for pair in quantities for training in pair})
        without = np.array(
            [
                np.mean([quantity.value for pair, quantity in quantities.items() if training not in pair])
                for training in trainings
            ]
        )
        return cls(
            value=float(np.mean([quantity.value for quantity in quantities.values()])),
            influence=np.mean([quantity.influence for quantity in quantities.values()], axis=0),
            variance=float((len(trainings) - 1) * np.var(without)),
            trainings=len(trainings),
        )

    def minus(self, subtracted: "SetShare") -> "SetShare":
        """Return the difference of two sets of trainings on the same images."""
        return SetShare(
            self.value - subtracted.value,
            self.influence - subtracted.influence,
            self.variance + subtracted.variance,
            min(self.trainings, subtracted.trainings),
        )

    def ends(self, images: int) -> tuple[float, float]:
        """Return the 95 % interval over images and trainings, by t with S − 1 degrees of freedom; NaN of few images."""
        if images < MIN_IMAGES:
            return np.nan, np.nan
        error = float(np.sqrt(standard_error(self.influence, images) ** 2 + self.variance))
        reach = critical(self.trainings) * error
        return self.value - reach, self.value + reach
