"""How often each of many keys occurs, as a table that adds up: one place per key where there are few, else sorted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array

Whole = NDArray[np.int64]

# Keys up to which each has a place of its own.
_DENSE = 2**22


@dataclass(frozen=True)
class Counts:
    """Sums by key; without ``keys`` entry i is that of key i, else keys ascend."""

    values: Array
    keys: Whole | None = None

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sums of both."""
        if self.keys is None:
            return Counts(self.values + other.values)
        assert other.keys is not None
        keys, number = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        both = np.concatenate([self.values, other.values])
        return Counts(np.bincount(number, weights=both, minlength=len(keys)).astype(np.float64), keys)

    def every_key(self) -> Whole:
        """Return the key of each entry."""
        return np.arange(len(self.values)) if self.keys is None else self.keys

    def at(self, keys: Whole, values: Array | None = None) -> Array:
        """Return the entries at ``keys``, of ``values`` in the place of the sums where given; 0 where there is none."""
        values = self.values if values is None else values
        if self.keys is None:
            return values[keys]
        if len(self.keys) == 0:
            return np.zeros(keys.shape)
        place = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[place] == keys, values[place], 0.0)


def count(keys: Whole, size: int, weights: Array | None = None) -> Counts:
    """Return how often keys from 0 to ``size`` − 1 occur, or the sums of their ``weights``."""
    if size <= _DENSE:
        return Counts(np.bincount(keys, weights=weights, minlength=size).astype(np.float64))
    different, number = np.unique(keys, return_inverse=True)
    return Counts(
        np.bincount(number, weights=weights, minlength=len(different)).astype(np.float64), different
    )
