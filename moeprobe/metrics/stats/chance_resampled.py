"""A chance level under the weights of resamples, from the counts of all images at once.

Axes: R resamples, n images, U (stratum, code) cells that occur on both sides.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.alike import Alike
from moeprobe.metrics.stats.statistic import Array, divide

Whole = NDArray[np.int64]

# Numbers held at a time: products of counts and image weights.
_BLOCK_NUMBERS = 2**21
# Keys and counts up to which each has a place of its own while they are counted.
_DENSE = 2**22
# Whole numbers up to here are exact in float32.
_EXACT_SINGLE = 2**24


class ResampledChance:
    """The counts of all images, to be multiplied with the weights of resamples."""

    def __init__(self, *, image: Whole, alike: Alike, stratum: Whole, num_images: int) -> None:
        num_strata, stratum = _renumber(stratum)
        self._trials = _counts(stratum, np.arange(num_strata), image, num_images)
        # Where all strata have the same trials of each image, as with patches of a whole grid, one stands for all.
        self._times = 1
        if num_strata > 1 and _rows_are_equal(self._trials):
            self._trials, self._times = self._trials[:1], num_strata
        # Pairs of an image with itself, and those of them that agree, per stratum and image.
        self._own_pairs = self._trials.multiply(self._trials).astype(np.float64)
        self._own_hits = sparse.csr_array((num_strata, num_images), dtype=np.float64)
        self._codes = []
        for codes in alike:
            wide = codes.reference.shape[1]
            number, code = _renumber(np.stack([codes.reference, codes.view]))
            cell = (stratum[:, None] * number + code).reshape(2, -1)
            both = _on_both_sides(cell, num_strata * number)
            of_code = np.repeat(image, wide)
            reference, view = (_counts(side, both, of_code, num_images) for side in cell)
            stratum_of_cell = both // max(number, 1)
            gather = sparse.csr_array(
                (np.ones(len(both), dtype=np.float32), (stratum_of_cell, np.arange(len(both)))),
                shape=(num_strata, len(both)),
            )
            own = gather @ reference.astype(np.float64).multiply(view)
            self._own_hits = self._own_hits + codes.weight * own
            row = stratum_of_cell if self._times == 1 else np.zeros_like(stratum_of_cell)
            self._codes.append((codes.weight, reference, view, row))
        # No count under weights that add up to n exceeds this.
        most = max(codes.reference.shape[1] for codes in alike)
        largest = float(self._trials.data.max(initial=0.0)) * num_images * most
        self._dtype = np.float32 if largest < _EXACT_SINGLE else np.float64

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        squared = weights**2
        weights = np.ascontiguousarray(weights, dtype=self._dtype)
        trials = (self._trials @ weights).astype(np.float64)
        # N_s over the number of pairs: N_s², less the pairs of an image with itself (and with its own copies).
        share = divide(trials, trials**2 - self._own_pairs @ squared, empty=0.0)
        agreement = -(share * (self._own_hits @ squared)).sum(0)
        rows = max(1, _BLOCK_NUMBERS // weights.shape[1])
        for weight, reference, view, row in self._codes:
            for start in range(0, len(row), rows):
                block = slice(start, start + rows)
                # Counts of cells by images, times contiguous rows of weights: scipy's fast way round.
                products = (reference[block] @ weights).astype(np.float64)
                products *= view[block] @ weights
                products *= share[row[block]]
                agreement += weight * products.sum(0)
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(divide(agreement, self._times * (trials * (share > 0)).sum(0)), 0.0, 1.0)


def _renumber(values: Whole) -> tuple[int, Whole]:
    """Return how many different values there are, and each value's number among them; values are 0 or more."""
    size = int(values.max(initial=-1)) + 1
    if size > _DENSE:
        different, number = np.unique(values, return_inverse=True)
        return len(different), number.reshape(values.shape)
    there = np.bincount(values.ravel(), minlength=size) > 0
    return int(there.sum()), (np.cumsum(there) - 1)[values]


def _on_both_sides(cell: Whole, size: int) -> Whole:
    """Return the cells that occur on either side ``(2, M)``, ascending; they are below ``size``."""
    if size > _DENSE:
        return np.intersect1d(np.unique(cell[0]), np.unique(cell[1]), assume_unique=True)
    reference, view = (np.bincount(side, minlength=size) > 0 for side in cell)
    return np.flatnonzero(reference & view)


def _counts(cell: Whole, cells: Whole, image: Whole, num_images: int) -> sparse.csr_array:
    """Return how often each of the sorted ``cells`` occurs in each image, ``(U, n)``; mostly never, so sparse."""
    row = np.searchsorted(cells, cell)
    row = row.clip(max=max(len(cells) - 1, 0))
    present = cells[row] == cell if len(cells) else np.zeros(len(cell), dtype=bool)
    row, image, shape = row[present], image[present], (len(cells), num_images)
    if shape[0] * num_images <= _DENSE:
        counted = np.bincount(row * num_images + image, minlength=shape[0] * num_images)
        return sparse.csr_array(counted.astype(np.float32).reshape(shape))
    return sparse.csr_array(
        sparse.coo_array((np.ones(len(row), dtype=np.float32), (row, image)), shape=shape)
    )


def _rows_are_equal(counts: sparse.csr_array) -> bool:
    """Return whether every row is the first one."""
    width = int(counts.indptr[1])
    if not (np.diff(counts.indptr) == width).all():
        return False
    return all(
        bool((part.reshape(-1, width) == part[:width]).all()) for part in (counts.indices, counts.data)
    )
