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
# Whole numbers up to here are exact in float32.
_EXACT_SINGLE = 2**24


class ResampledChance:
    """The counts of all images, to be multiplied with the weights of resamples."""

    def __init__(self, *, image: Whole, alike: Alike, stratum: Whole, num_images: int) -> None:
        num_strata, stratum = _renumber(stratum)
        self._trials = _counts(stratum, np.arange(num_strata), image, num_images)
        # Pairs of an image with itself, and those of them that agree, per stratum and image.
        self._own_pairs = self._trials.multiply(self._trials).astype(np.float64)
        self._own_hits = sparse.csr_array((num_strata, num_images), dtype=np.float64)
        self._codes = []
        for codes in alike:
            wide = codes.reference.shape[1]
            number, code = _renumber(np.stack([codes.reference, codes.view]))
            cell = (stratum[:, None] * number + code).reshape(2, -1)
            both = np.intersect1d(np.unique(cell[0]), np.unique(cell[1]), assume_unique=True)
            of_code = np.repeat(image, wide)
            reference, view = (_counts(side, both, of_code, num_images) for side in cell)
            stratum_of_cell = both // max(number, 1)
            gather = sparse.csr_array(
                (np.ones(len(both), dtype=np.float32), (stratum_of_cell, np.arange(len(both)))),
                shape=(num_strata, len(both)),
            )
            own = gather @ reference.astype(np.float64).multiply(view)
            self._own_hits = self._own_hits + codes.weight * own
            self._codes.append((codes.weight, reference, view, stratum_of_cell))
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
        for weight, reference, view, stratum_of_cell in self._codes:
            for start in range(0, len(stratum_of_cell), rows):
                block = slice(start, start + rows)
                # Counts of cells by images, times contiguous rows of weights: scipy's fast way round.
                products = (reference[block] @ weights).astype(np.float64)
                products *= view[block] @ weights
                products *= share[stratum_of_cell[block]]
                agreement += weight * products.sum(0)
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(divide(agreement, (trials * (share > 0)).sum(0)), 0.0, 1.0)


def _renumber(values: Whole) -> tuple[int, Whole]:
    """Return how many different values there are, and each value's number among them."""
    different, number = np.unique(values, return_inverse=True)
    return len(different), number.reshape(values.shape)


def _counts(cell: Whole, cells: Whole, image: Whole, num_images: int) -> sparse.csr_array:
    """Return how often each of the sorted ``cells`` occurs in each image, ``(U, n)``; mostly never, so sparse."""
    row = np.searchsorted(cells, cell)
    row = row.clip(max=max(len(cells) - 1, 0))
    present = cells[row] == cell if len(cells) else np.zeros(len(cell), dtype=bool)
    ones = np.ones(int(present.sum()), dtype=np.float32)
    counts = sparse.coo_array((ones, (row[present], image[present])), shape=(len(cells), num_images))
    return sparse.csr_array(counts)
