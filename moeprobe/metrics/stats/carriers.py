"""How many inputs carry a mean of losses: where a few do, it has no interval.

A rise of the loss is near 0 for most inputs and large for a few. A sample that lacks those few looks as if there were
none, so an interval around its mean, whether of t, of percentiles or of bootstrap-t, misses the truth too often. The
*carriers* are the fewest inputs that hold half of Σ|x|; x is what an input adds to the mean, its part of the
numerator divided by the whole denominator, not centered.

Axes: n inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from moeprobe.metrics.stats.statistic import Array

# With fewer carriers than this there is no interval: from here on it holds the truth about as often as it says.
MIN_CARRIERS = 10
# A change in nats that is rounding of float32; where no input has more, nothing is carried.
_ROUNDING = 1e-6
# Sums of blocks differ in their last bits, and half of a sum may be exactly what some inputs hold.
_HALF = 0.5 * (1 - 1e-12)


@dataclass(frozen=True)
class Tail:
    """The largest parts of a mean, which tell how few inputs carry it; read block by block.

    Six inputs, the largest of which adds 5 of 10: it carries half alone:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.carriers import Tail
    >>> Tail.of(np.array([1.0, -1.0, 5.0, 1.0, 1.0, 1.0])).carriers(inputs=6)
    1

    Attributes:
        largest: the largest |x|, at most ``MIN_CARRIERS`` of them, in falling order.
        total: Σ|x| of all inputs.
    """

    largest: Array
    total: float

    @classmethod
    def of(cls, contributions: Array) -> Self:
        """Return the tail of some inputs ``(n,)``."""
        sizes = np.abs(contributions)
        return cls(np.sort(sizes)[::-1][:MIN_CARRIERS], float(sizes.sum()))

    def plus(self, added: Tail) -> Tail:
        """Return the tail of these inputs and others."""
        largest = np.sort(np.concatenate([self.largest, added.largest]))[::-1][:MIN_CARRIERS]
        return Tail(largest, self.total + added.total)

    def carriers(self, inputs: int) -> int | None:
        """Return how many of so many inputs carry half, at most ``MIN_CARRIERS``; None where all of it is rounding."""
        if not len(self.largest) or not inputs * self.largest[0] > _ROUNDING:
            return None
        fewest = np.searchsorted(np.cumsum(self.largest), _HALF * self.total) + 1
        return min(int(fewest), MIN_CARRIERS)


def inputs_needed(inputs: int, carriers: int) -> int:
    """Return roughly how many inputs would have ``MIN_CARRIERS`` carriers, if so many have ``carriers``.

    If 4 of 100 inputs carry half, 10 of 250 would:

    >>> from moeprobe.metrics.stats.carriers import inputs_needed
    >>> inputs_needed(100, carriers=4)
    250
    """
    return -(-inputs * MIN_CARRIERS // carriers)
