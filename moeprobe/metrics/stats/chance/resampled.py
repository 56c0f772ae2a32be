"""A chance level under the weights of resamples, from the counts of all images at once.

Axes: R resamples, n images, U (stratum, code) cells that occur on both sides.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.alike import Alike
from moeprobe.metrics.stats.arrays import Array, Integers
from moeprobe.metrics.stats.statistic import divide

# Numbers held at a time: products of counts and image weights.
_BLOCK_NUMBERS = 2**21
# Keys and counts up to which each has a place of its own while they are counted.
_DENSE = 2**22
# How many times as quick a product with a dense matrix is, for its size, as one with a sparse matrix for its entries.
_QUICKER = 8
# Counts up to which scipy takes longer to set a product up than to compute it.
_SMALL = 2**17
# Integers numbers up to here are exact in float32.
_EXACT_SINGLE = 2**24


class ResampledChance:
    """The counts of all images, to be multiplied with the weights of resamples."""

    def __init__(self, *, image: Integers, similarity: Alike, stratum: Integers, num_images: int) -> None:
        num_strata, stratum = _renumber(stratum)
        self._trials = _counts(stratum, np.arange(num_strata), image, num_images)
        # Where all strata have the same trials of each image, as with patches of a whole grid, one stands for all.
        self._times = 1
        if num_strata > 1 and _rows_are_equal(self._trials):
            self._trials, self._times = self._trials[:1], num_strata
        num_rows = self._trials.shape[0]
        # No count under weights that add up to n exceeds this.
        num_codes = max(codes.reference.shape[1] for codes in similarity)
        largest = float(self._trials.max()) * num_images * num_codes if self._trials.size else 0.0
        # Nor does this what two images have in common in all strata, of which a count is the product of two.
        of_pairs = largest**2 * self._times / max(num_images, 1)
        self._dtype, dtype_of_pairs = (
            np.float32 if count < _EXACT_SINGLE else np.float64 for count in (largest, of_pairs)
        )
        # Pairs of an image with itself, and those of them that agree, per row of the trials and image.
        self._own_pairs = self._trials.astype(np.float64) * self._trials
        own_hits, self._codes = [], []
        # Where a share is the same in all strata: how many cells each two images have in common, ``(n, n)``.
        self._common: list[tuple[float, NDArray[np.floating]]] = []
        for codes in similarity:
            wide = codes.reference.shape[1]
            number, code = _renumber(np.stack([codes.reference, codes.view]))
            cell = (stratum[:, None] * number + code).reshape(2, -1)
            common_cells = _on_both_sides(cell, num_strata * number)
            of_code = np.repeat(image, wide)
            reference, view = (_counts(side, common_cells, of_code, num_images) for side in cell)
            row = common_cells // max(number, 1) if num_rows > 1 else np.zeros_like(common_cells)
            if num_rows == 1 and num_images**2 < _QUICKER * (_cost(reference) + _cost(view)):
                common = _dense(reference.astype(dtype_of_pairs).T @ view.astype(dtype_of_pairs))
                self._common.append((codes.weight, common))
                hits = np.diagonal(common)[None].astype(np.float64)
            else:
                self._codes.append((codes.weight, reference, view, row))
                hits = _sums_of_rows(reference.astype(np.float64) * view, row, num_rows)
            own_hits.append(hits * codes.weight)
        self._own_hits = sum(own_hits[1:], own_hits[0])

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        exact, squared = weights, weights**2
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
        for weight, common in self._common:
            products = (common @ exact.astype(common.dtype)).astype(np.float64)
            products *= exact
            agreement += weight * share[0] * products.sum(0)
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(divide(agreement, self._times * (trials * (share > 0)).sum(0)), 0.0, 1.0)


def _renumber(values: Integers) -> tuple[int, Integers]:
    """Return how many different values there are, and each value's number among them; values are 0 or more."""
    size = int(values.max(initial=-1)) + 1
    if size > _DENSE:
        different, number = np.unique(values, return_inverse=True)
        return len(different), number.reshape(values.shape)
    occurs = np.bincount(values.ravel(), minlength=size) > 0
    return int(occurs.sum()), (np.cumsum(occurs) - 1)[values]


def _on_both_sides(cell: Integers, size: int) -> Integers:
    """Return the cells that occur on either side ``(2, M)``, ascending; they are below ``size``."""
    if size > _DENSE:
        return np.intersect1d(np.unique(cell[0]), np.unique(cell[1]), assume_unique=True)
    reference, view = (np.bincount(side, minlength=size) > 0 for side in cell)
    return np.flatnonzero(reference & view)


def _counts(cell: Integers, cells: Integers, image: Integers, num_images: int) -> Any:
    """Return how often each of the sorted ``cells`` occurs in each image, ``(U, n)``; if large sparse: mostly never."""
    row = np.searchsorted(cells, cell)
    row = row.clip(max=max(len(cells) - 1, 0))
    present = cells[row] == cell if len(cells) else np.zeros(len(cell), dtype=bool)
    row, image, shape = row[present], image[present], (len(cells), num_images)
    size = shape[0] * num_images
    if size <= _DENSE:
        counts = np.bincount(row * num_images + image, minlength=size).astype(np.float32).reshape(shape)
        return counts if size <= _SMALL else sparse.csr_array(counts)
    return sparse.csr_array(
        sparse.coo_array((np.ones(len(row), dtype=np.float32), (row, image)), shape=shape)
    )


def _cost(counts: Any) -> float:
    """Return what a product with counts takes: entries of a sparse matrix, or as many as take as long."""
    return counts.size / _QUICKER if isinstance(counts, np.ndarray) else counts.nnz


def _dense(counts: Any) -> NDArray[np.floating]:
    return counts if isinstance(counts, np.ndarray) else counts.toarray()


def _sums_of_rows(values: Any, row: Integers, num_rows: int) -> Any:
    """Return the sums ``(num_rows, n)`` of the rows of each number."""
    units = np.ones(len(row), dtype=np.float32)
    return sparse.csr_array((units, (row, np.arange(len(row)))), shape=(num_rows, len(row))) @ values


def _rows_are_equal(counts: Any) -> bool:
    """Return whether every row is the first one."""
    if isinstance(counts, np.ndarray):
        return bool((counts == counts[:1]).all())
    width = int(counts.indptr[1])
    if not (np.diff(counts.indptr) == width).all():
        return False
    return all(
        bool((part.reshape(-1, width) == part[:width]).all()) for part in (counts.indices, counts.data)
    )
