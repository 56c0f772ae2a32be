"""How often each of many keys occurs, in tables that add up over blocks of images.

If there are few possible keys, each has a place of its own. Otherwise only the keys that occur are kept, in ascending
order: new keys wait until there are many, and are then sorted at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import SCATTER, is_first, runs
from moeprobe.metrics.stats.statistic import Array, Integers

# Keys up to which each has a place of its own.
_DENSE = 2**22
# Keys of the first part that are merged at a time.
_AT_ONCE = 2**17
# Different keys, ascending, and their sums.
_Part = tuple[Integers, NDArray[Any]]
# Keys that may wait, at least.
_WAITING = 2**20


@dataclass
class _Buffer:
    """Keys that wait, in one piece of memory: as many pieces as blocks would leave holes in it.

    Attributes:
        keys: in any order, with room behind them.
        size: how many there are.
    """

    keys: Integers
    size: int


class Counts:
    """Sums by key; without ``keys`` entry i belongs to key i, else keys ascend."""

    def __init__(
        self, values: NDArray[Any], keys: Integers | None = None, waiting: _Buffer | None = None
    ) -> None:
        self._values, self._keys = values, keys
        self._buffer, self._waiting = waiting, 0 if waiting is None else waiting.size

    @property
    def values(self) -> Array:
        """The sum of each key."""
        self._merge()
        return self._values.astype(np.float64, copy=False)

    @property
    def keys(self) -> Integers | None:
        """The keys that occur; None = each has an entry."""
        self._merge()
        return self._keys

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sums of both."""
        if self._keys is None:
            return Counts(self.values + other.values)
        # No keys wait on the other side: both are sorted already.
        if other._buffer is None:
            self._merge()
            assert other._keys is not None
            keys, values = _merge_parts([(self._keys, self._values), (other._keys, other._values)])
            return Counts(values, keys)
        return self._extend(other._buffer.keys[: other._waiting])

    def take(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Return the sums of some entries, in as few bytes as they are kept."""
        self._merge()
        return self._values[entries]

    def at(self, keys: Integers, values: Array | None = None) -> Array:
        """Return the entries at ``keys``, of ``values`` in the place of the sums where given; 0 where there is none."""
        values = self.values if values is None else values
        if self.keys is None:
            return values.take(keys)
        # A search in ascending order goes through memory once.
        order = np.argsort(keys, axis=None)
        ordered = keys.ravel()[order]
        index = np.searchsorted(self.keys, ordered)
        is_known = index < len(self.keys)
        is_known[is_known] = self.keys[index[is_known]] == ordered[is_known]
        entries = np.zeros(keys.size)
        entries[order[is_known]] = values[index[is_known]]
        return entries.reshape(keys.shape)

    def _extend(self, keys: Integers) -> "Counts":
        """Return the sums with keys that occur once more each."""
        buffer, size = self._buffer, self._waiting + len(keys)
        # Room that another sum has taken is not free.
        if buffer is None or size > len(buffer.keys) or buffer.size != self._waiting:
            self._merge()
            assert self._keys is not None
            # Half of what there is: buffers grow with the counts, and are seldom full.
            buffer = _Buffer(np.empty(max(_WAITING, len(self._keys) // 2, len(keys)), dtype=np.int64), 0)
            size = len(keys)
        buffer.keys[buffer.size : size] = keys
        buffer.size = size
        return Counts(self._values, self._keys, buffer)

    def _merge(self) -> None:
        """Sort in what waits."""
        if self._buffer is None:
            return
        assert self._keys is not None
        added = runs(self._buffer.keys[: self._waiting])
        self._buffer, self._waiting = None, 0
        self._keys, self._values = (
            _merge_parts([(self._keys, self._values), added]) if len(self._keys) else added
        )


def count(keys: Integers, size: int, weights: Array | None = None) -> Counts:
    """Return how often keys from 0 to ``size`` − 1 occur, or the sums of their ``weights``."""
    if size <= _DENSE:
        # A place per key: an addition is an array sum.
        return Counts(np.bincount(keys, weights=weights, minlength=size).astype(np.float64))
    if weights is None:
        nothing = np.empty(0, dtype=np.int64)
        return Counts(nothing.astype(np.uint32), nothing, _Buffer(keys, len(keys)))
    different, number = np.unique(keys, return_inverse=True)
    return Counts(np.bincount(number, weights=weights, minlength=len(different)), different)


def _merge_parts(parts: Sequence[_Part]) -> _Part:
    """Return the keys of all parts, ascending, and their sums, added up in the order of the parts."""
    # Cut at the same keys in all parts, so that ranges can be merged one by one.
    cuts = parts[0][0][_AT_ONCE::_AT_ONCE]
    ends = [[0, *np.searchsorted(keys, cuts).tolist(), len(keys)] for keys, _ in parts]
    # One range of keys after the other: it stays in the processor's cache, and little is held twice.
    merged = []
    for ranges in zip(*(pairwise(end) for end in ends), strict=True):
        rows = [slice(low, high) for low, high in ranges]
        merged.append(
            _merged_range([(keys[row], values[row]) for (keys, values), row in zip(parts, rows, strict=True)])
        )
    return np.concatenate([keys for keys, _ in merged]), np.concatenate([values for _, values in merged])


def _merged_range(parts: Sequence[_Part]) -> _Part:
    keys = np.concatenate([keys for keys, _ in parts])
    # Each part ascends: this sort merges them.
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], np.concatenate([values for _, values in parts])[order]
    first = np.flatnonzero(is_first(keys))
    return keys[first], np.add.reduceat(values, first, dtype=values.dtype) if len(first) else values


class Pairs:
    """Numbers by key, one of either side; 0 where there is none.

    Args:
        reference: of the reference's keys.
        view: of the view's.
        keys: which they are of, all different; None = number i is of key i.
    """

    def __init__(self, reference: NDArray[Any], view: NDArray[Any], keys: Integers | None) -> None:
        self._sides, self._buckets = (reference, view), None
        if keys is not None:
            self._buckets, order = _Buckets.of(keys)
            # The last entry is that of keys that there are not.
            self._sides = _with_none(reference[order]), _with_none(view[order])

    def sum_at(self, reference: Integers, view: Integers) -> Array:
        """Return the sum of what either side has at its keys, both of the same shape."""
        if self._buckets is None:
            return np.add(self._sides[0].take(reference), self._sides[1].take(view), dtype=np.float64)
        index = self._buckets.find(reference)
        sums = self._sides[0].take(index)
        # Most tokens have the same key on both sides, which is looked up once.
        moved = reference != view
        index[moved] = self._buckets.find(view[moved])
        return np.add(sums, self._sides[1].take(index), dtype=np.float64)


def _with_none(values: NDArray[Any]) -> NDArray[Any]:
    return np.append(values, values.dtype.type(0))


class _Buckets:
    """Different keys, scattered over as many buckets: one is found in the same time among any number of them."""

    def __init__(self, shift: np.uint64, start: NDArray[np.int32], keys: Integers) -> None:
        self._shift, self._start, self._keys = shift, start, keys

    @classmethod
    def of(cls, keys: Integers) -> tuple["_Buckets", Integers]:
        """Return them, and the keys' order in them."""
        # As many buckets as keys, rounded up to a power of two: the high bits of a product choose one.
        shift = np.uint64(64 - max(len(keys), 1).bit_length())
        bucket = _bucket_of(keys, shift)
        start = np.zeros(2 ** (64 - int(shift)) + 1, dtype=np.int32)
        np.cumsum(np.bincount(bucket, minlength=len(start) - 1), out=start[1:])
        # Whole numbers that hold where they come from sort faster than an order of them.
        order = bucket
        order <<= 32
        order |= np.arange(len(keys))
        order.sort()
        order &= 2**32 - 1
        # The last entry is that of keys that there are not.
        return cls(shift, start, np.append(keys[order], -1)), order

    def find(self, keys: Integers) -> NDArray[np.int32]:
        """Return where keys are in the order, behind its end those that there are not."""
        flat = keys.ravel()
        bucket = _bucket_of(flat, self._shift)
        index = self._start.take(bucket)
        # Most keys are the first of their bucket.
        searched = np.flatnonzero(self._keys.take(index) != flat)
        while len(searched):
            following = index[searched] + 1
            is_over = following >= self._start.take(bucket[searched] + 1)
            index[searched] = np.where(is_over, len(self._keys) - 1, following)
            searched = searched[~is_over]
            searched = searched[self._keys.take(index[searched]) != flat[searched]]
        return index.reshape(keys.shape)


def _bucket_of(keys: Integers, shift: np.uint64) -> Integers:
    return (keys.astype(np.uint64) * SCATTER >> shift).astype(np.int64)
