"""The match that chance alone would reach.

Axes: R resamples, n images, M trials, F codes of a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.alike import Alike, Codes, within
from moeprobe.metrics.stats.chance.counts import Counts, count
from moeprobe.metrics.stats.chance.strata import Strata, are_thin
from moeprobe.metrics.stats.chance.totals import ChanceTotals
from moeprobe.metrics.stats.chance.trials import Histograms, Trials
from moeprobe.metrics.stats.statistic import Array, Integers, divide, expand_linearly
from moeprobe.runtime.caching import cache_last

# Numbers held at a time: products of counts and image weights.
NUMBERS_AT_ONCE = 2**21
# Keys and counts up to which each has a place of its own while they are counted.
DENSE_KEYS = 2**22
# How many times as quick a product with a dense matrix is, for its size, as one with a sparse matrix for its entries.
_QUICKER = 8
# Counts up to which scipy takes longer to set a product up than to compute it.
SMALL_COUNTS = 2**17
# Codes of either side up to which positions of sequences are resampled, sequences that are enough at a position for a
# linear approximation, and the share of trials at such positions: resamples take seconds, and standard errors differ by
# less than 2 %.
RESAMPLED_CODES, ENOUGH_SEQUENCES, LARGE_SHARE = 2**20, 100, 0.99
# Whole numbers up to here are exact in float32.
EXACT_IN_SINGLE = 2**24


class ResampledChance:
    """A chance level under the weights of resamples, from counts of all images.

    c(w) = Σ_s (N_s / P_s) Q_s / Σ_s N_s over strata s, each under image weights w: N_s trials, P_s pairs of trials of
    two images, Q_s how alike the tokens of these pairs are. Q_s counts *cells*, which are codes in a stratum: a pair of
    tokens agrees in a cell that both have.
    """

    def __init__(
        self,
        *,
        image: Integers,
        similarity: Alike,
        stratum: Integers,
        num_images: int,
        histograms: Sequence[Histograms | None] | None = None,
    ) -> None:
        num_strata, stratum = _renumber(stratum)
        self._trials = _counts(stratum, num_strata, image, num_images)
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
            np.float32 if count < EXACT_IN_SINGLE else np.float64 for count in (largest, of_pairs)
        )
        self._cells: list[_Cells] = []
        self._common: list[_CommonCells] = []
        hits = []
        for codes, sides in zip(similarity, histograms or [None] * len(similarity), strict=True):
            if num_strata == 1 and sides is not None and sides[0].size <= SMALL_COUNTS:
                cells = _Cells.of_histograms(codes.weight, sides)
            else:
                cells = _Cells.of(codes, image, stratum, num_images=num_images, one_row=num_rows == 1)
            # Cells of all strata can be folded into one n × n matrix only if strata share their trials; it pays with
            # few images.
            if num_rows == 1 and num_images**2 < _QUICKER * cells.cost:
                common = cells.fold(dtype_of_pairs)
                self._common.append(common)
                hits.append(common.own_hits)
            else:
                self._cells.append(cells)
                hits.append(cells.own_hits(num_rows))
        # Pairs of an image with itself, and how alike their tokens are, by row of the trials and image.
        self._own_pairs = self._trials.astype(np.float64) * self._trials
        self._own_hits = sum(hits[1:], hits[0])

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        # An image drawn w times is paired with itself and its copies w² times.
        squared = weights**2
        narrow: NDArray[np.floating] = np.ascontiguousarray(weights, dtype=self._dtype)
        # Kernels of BLAS may flag products of finite numbers as invalid, by what they pad them with.
        with np.errstate(invalid="ignore"):
            trials = (self._trials @ narrow).astype(np.float64)
        # P_s is N_s² without the pairs of an image with itself (and with its own copies).
        share = divide(trials, trials**2 - self._own_pairs @ squared, empty=0.0)
        agreement = -(share * (self._own_hits @ squared)).sum(0)
        for cells in self._cells:
            for part in cells.agreement(narrow, share):
                agreement += part
        for common in self._common:
            agreement += common.agreement(weights, share[0])
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(divide(agreement, self._times * (trials * (share > 0)).sum(0)), 0.0, 1.0)


@dataclass(frozen=True)
class _Cells:
    """How often each cell occurs in each image; cells that one side lacks are left out, since no pair agrees in them.

    Attributes:
        weight: by how much a cell in common makes two tokens alike.
        reference: ``(U, n)`` counts of the reference's tokens, dense or sparse.
        view: ``(U, n)`` counts of the view's tokens.
        row: ``(U,)`` row of the trials that each cell belongs to: its stratum, or 0 where one row stands for all.
    """

    weight: float
    reference: Any
    view: Any
    row: Integers

    @classmethod
    def of(
        cls, codes: Codes, image: Integers, stratum: Integers, *, num_images: int, one_row: bool
    ) -> "_Cells":
        """Count the cells of codes ``(M, F)`` in strata ``(M,)``, whose numbers begin with 0 and leave none out."""
        number, code = _renumber(np.stack([codes.reference, codes.view]))
        cell = (stratum[:, None] * number + code).reshape(2, -1)
        size = (int(stratum.max(initial=-1)) + 1) * number
        on_both_sides = _on_both_sides(cell, size)
        of_code = np.repeat(image, codes.reference.shape[1])
        reference, view = (
            _counts(_row_numbers(side, on_both_sides, size), len(on_both_sides), of_code, num_images)
            for side in cell
        )
        row = np.zeros_like(on_both_sides) if one_row else on_both_sides // max(number, 1)
        return cls(codes.weight, reference, view, row)

    @classmethod
    def of_histograms(cls, weight: float, histograms: Histograms) -> "_Cells":
        """Return the cells of a single stratum, whose codes are counted by image already."""
        on_both_sides = np.flatnonzero(histograms[0].any(0) & histograms[1].any(0))
        reference, view = (
            np.ascontiguousarray(side.T[on_both_sides], dtype=np.float32) for side in histograms
        )
        return cls(weight, reference, view, np.zeros_like(on_both_sides))

    @property
    def cost(self) -> float:
        """What a product with the counts of both sides takes."""
        return product_cost(self.reference) + product_cost(self.view)

    def fold(self, dtype: type[np.floating]) -> "_CommonCells":
        """Return what images have in common over all cells."""
        common = _dense(self.reference.astype(dtype).T @ self.view.astype(dtype))
        return _CommonCells(self.weight, common)

    def own_hits(self, num_rows: int) -> Any:
        """Return how alike the tokens of an image are to each other ``(num_rows, n)``."""
        return _sums_of_rows(self.reference.astype(np.float64) * self.view, self.row, num_rows) * self.weight

    def agreement(self, weights: NDArray[np.floating], share: Array) -> Iterator[Array]:
        """Yield parts of Σ_s share_s Q_s ``(R,)``, which still hold the pairs of an image with itself."""
        # Blocks of rows bound the memory: cells may be millions, resamples thousands.
        step = max(1, NUMBERS_AT_ONCE // weights.shape[1])
        for start in range(0, len(self.row), step):
            block = slice(start, start + step)
            # Counts of cells by images, times contiguous rows of weights: scipy's fast way round.
            products = (self.reference[block] @ weights).astype(np.float64)
            products *= self.view[block] @ weights
            products *= share[self.row[block]]
            yield self.weight * products.sum(0)


@dataclass(frozen=True)
class _CommonCells:
    """The same, where the share is equal in all strata and images are fewer than cells: cells need not be told apart.

    Attributes:
        weight: as of ``_Cells``.
        common: ``(n, n)`` how many cells the reference's tokens of one image share with the view's of another.
    """

    weight: float
    common: NDArray[np.floating]

    @property
    def own_hits(self) -> Array:
        """How alike the tokens of an image are to each other ``(1, n)``."""
        own_hits: Array = np.diagonal(self.common)[None].astype(np.float64) * self.weight
        return own_hits

    def agreement(self, weights: Array, share: Array) -> Array:
        """Return share · Q ``(R,)``, which still holds the pairs of an image with itself."""
        products = (self.common @ weights.astype(self.common.dtype)).astype(np.float64)
        products *= weights
        agreement: Array = self.weight * share * products.sum(0)
        return agreement


def _renumber(values: Integers) -> tuple[int, Integers]:
    """Return how many different values there are, and each value's number among them; values are 0 or more."""
    size = int(values.max(initial=-1)) + 1
    # A table of flags this large takes longer than a sort.
    if size > DENSE_KEYS:
        different, number = np.unique(values, return_inverse=True)
        return len(different), number.reshape(values.shape)
    occurs = np.bincount(values.ravel(), minlength=size) > 0
    return int(occurs.sum()), (np.cumsum(occurs) - 1)[values]


def _on_both_sides(cell: Integers, size: int) -> Integers:
    """Return the cells that occur on either side ``(2, M)``, ascending; they are below ``size``."""
    if size > DENSE_KEYS:
        return np.intersect1d(_distinct(cell[0]), _distinct(cell[1]), assume_unique=True)
    reference, view = (np.bincount(side, minlength=size) > 0 for side in cell)
    return np.flatnonzero(reference & view)


def _distinct(values: Integers) -> Integers:
    """Return the different values, ascending; NumPy 2.3 hashes them, which takes as long as 90 such sorts."""
    ordered = np.sort(values)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _row_numbers(values: Integers, among: Integers, size: int) -> Integers:
    """Return where values below ``size`` are among sorted ones, -1 where they are not."""
    if not len(among):
        return np.full(len(values), -1)
    if size > DENSE_KEYS:
        number = np.searchsorted(among, values)
        number[number == len(among)] = -1
        number[among[number] != values] = -1
        return number
    number_of = np.full(size, -1)
    number_of[among] = np.arange(len(among))
    return number_of[values]


def _counts(row: Integers, num_rows: int, image: Integers, num_images: int) -> Any:
    """Return how often each row occurs in each image, ``(U, n)``, without -1; if large sparse: mostly never.

    ``image`` ascends.
    """
    present = row >= 0
    row, image = row[present], image[present]
    if num_rows * num_images <= SMALL_COUNTS:
        counts = np.bincount(row * num_images + image, minlength=num_rows * num_images)
        return counts.astype(np.float32).reshape(num_rows, num_images)
    # Images ascend, so the rows are in the order of columns already; to sort them takes several times as long.
    starts = np.searchsorted(image, np.arange(num_images + 1)).astype(np.int32)
    entries = np.ones(len(row), dtype=np.float32), row.astype(np.int32), starts
    sparse_counts = sparse.csc_array(entries, shape=(num_rows, num_images)).tocsr()
    sparse_counts.sum_duplicates()
    return sparse_counts


def product_cost(counts: Any) -> float:
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
        # Sparse rows are equal if they have as many entries in the same columns with the same values.
        return bool((counts == counts[:1]).all())
    width = int(counts.indptr[1])
    if not (np.diff(counts.indptr) == width).all():
        return False
    return all(
        bool((part.reshape(-1, width) == part[:width]).all()) for part in (counts.indices, counts.data)
    )


class Chance:
    """How alike independent draws with the two sides' own marginals would be, within strata.

    c = Σ_s (N_s / N) Σ_{a, b} p_A(a | s) p_B(b | s) alike(a, b), with N_s the trials in stratum s; where alike is being
    the same, that is Σ_code p_A(code | s) p_B(code | s). One stratum gives the pooled null; the patch position as
    stratum gives the position null, the class of the image the class null.

    It is estimated from pairs of two images, i ≠ j: the plain product of the two marginals pairs an image with itself
    too, which makes it too high by about (m − c) / n, and by twice that in a resample, where images have copies.

    Where strata hold few images each, as for rare tokens, many resamples have no two images of a stratum: they
    would give the chance level of other trials. There the value under weights is its linear approximation. So it is of
    long sequences of different lengths, each position of which is a stratum with counts of its own.

    Five images with two tokens each. The views have expert 0 six and five times in ten, which makes
    0.6 · 0.5 + 0.4 · 0.5; of two different images 40 of the 80 pairs are alike:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.alike import same
    >>> from moeprobe.metrics.stats.chance.levels import Chance
    >>> from moeprobe.metrics.stats.chance.strata import single_stratum
    >>> from moeprobe.metrics.stats.chance.trials import Trials
    >>> alike = same(np.array([0, 0, 0, 1, 1, 1, 0, 1, 0, 0]), np.array([0, 0, 0, 1, 1, 0, 0, 1, 0, 1]), size=2)
    >>> Chance(Trials(np.repeat(np.arange(5), 2), alike, num_images=5), single_stratum(10)).value()
    0.5

    Args:
        trials: pairs of tokens.
        strata: of the trials.
    """

    def __init__(self, trials: Trials, strata: Strata) -> None:
        self.trials, self.strata = trials, strata

    @cache_last
    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        if self._is_thin or self._is_large:
            return np.clip(expand_linearly(self.value(), self.influence(), weights), 0.0, 1.0)
        return self._resampled.evaluate(weights)

    @cached_property
    def _is_thin(self) -> bool:
        if self.strata.size == 1:
            return False
        _, stratum, trials, _ = self._slots
        return are_thin(stratum, trials, size=self.strata.size, num_images=self.trials.num_images)

    @cached_property
    def _is_large(self) -> bool:
        """Whether there are too many counts to resample, and images enough to approximate."""
        if not self.strata.of_sequences:
            return False
        if sum(codes.reference.size for codes in self.trials.alike) <= RESAMPLED_CODES:
            return False
        in_stratum = np.bincount(self.strata.number, minlength=1)
        # Where all sequences with trials have one at every position, they are compared as wholes, which is quick.
        if in_stratum[in_stratum > 0].min() == np.count_nonzero(self.trials.number):
            return False
        large = in_stratum[in_stratum >= ENOUGH_SEQUENCES].sum()
        return bool(large >= LARGE_SHARE * in_stratum.sum())

    def totals(self) -> ChanceTotals:
        """Return the counts that add up."""
        return self._totals

    def value(self, totals: ChanceTotals | None = None) -> float:
        """Return c."""
        return (self._totals if totals is None else totals).value

    def influence(self, totals: ChanceTotals | None = None) -> Array:
        """Return the derivative of c by each image's weight."""
        return self._influence(self._totals if totals is None else totals)

    @cache_last
    def _influence(self, totals: ChanceTotals) -> Array:
        """Return it; c and κ ask for it one after the other.

        It is the sum of the slopes of c by all that an image adds: its trials, the codes of their tokens on either
        side, and its pairs of trials with one another, which are no draws.
        """
        of_trial, of_own_pair, of_codes = totals.slopes
        trials, stratum = self.trials, self.strata.number
        if self.strata.single:
            # The only pair of a trial with one of its own image and stratum is that with itself.
            of_trial = of_trial + 2 * of_own_pair
        similarity = np.zeros(len(stratum))
        for codes, slopes in zip(trials.alike, of_codes, strict=True):
            for rows in self._blocks(codes):
                keys = [self._key(side, codes.size, rows) for side in (codes.reference, codes.view)]
                similarity[rows] += codes.weight * _sum_rows(slopes.sum_at(*keys))
        if self.strata.single:
            similarity -= 2 * trials.hits
        share = totals.share
        if self.strata.size > 1:
            share, of_trial = totals.trials.at(stratum, share), totals.trials.at(stratum, of_trial)
        of_each = share * similarity
        of_each += of_trial
        if self.strata.single:
            return divide(trials.by_image(of_each), totals.num_trials)
        image, stratum, number, hits = self._slots
        pairs_of_slot = (
            totals.trials.at(stratum, of_own_pair) * number**2
            - totals.trials.at(stratum, totals.share) * hits
        )
        of_image = np.bincount(image, weights=pairs_of_slot, minlength=trials.num_images)
        return divide(trials.by_image(of_each) + 2 * of_image, totals.num_trials)

    def counted_trials(self, totals: ChanceTotals | None = None) -> Integers:
        """Return each image's trials ``(n,)`` that have a chance level: elsewhere no other image is in the stratum."""
        rows = self.has_others(totals)
        if rows is None:
            return self.trials.number
        return np.bincount(self.trials.image[rows], minlength=self.trials.num_images)

    def has_others(self, totals: ChanceTotals | None = None) -> NDArray[np.bool_] | None:
        """Return which trials ``(M,)`` have another image in their stratum; None = all."""
        totals = self._totals if totals is None else totals
        if (totals.share > 0).all():
            return None
        return totals.trials.at(self.strata.number, totals.share) > 0

    @cached_property
    def _totals(self) -> ChanceTotals:
        size = self.strata.size
        if self.strata.single:
            # The only pair of a trial with one of its own image and stratum is that with itself.
            trials = own_pairs = count(self.strata.number, size)
            own_hits = self.hits_by_stratum
        else:
            _, stratum, number, hits = self._slots
            trials, own_pairs = count(stratum, size, number), count(stratum, size, number**2)
            own_hits = count(stratum, size, hits)
        codes = tuple(
            self._count(*of_codes) for of_codes in zip(self.trials.alike, self.trials.histograms, strict=True)
        )
        return ChanceTotals(trials, own_pairs, own_hits, codes)

    @cached_property
    def hits_by_stratum(self) -> Counts:
        """How alike the two tokens of trials are, summed by stratum."""
        return count(self.strata.number, self.strata.size, self.trials.hits)

    def _count(self, codes: Codes, histograms: Histograms | None) -> tuple[float, int, Counts, Counts]:
        """Return weight, number of codes, and how often either side has each code in each stratum."""
        if histograms is not None and self.strata.size == 1:
            reference, view = (Counts(side.sum(0)) for side in histograms)
        else:
            # One side after the other: keys of millions fill a hundred megabytes.
            reference, view = (
                count(self._key(side, codes.size).ravel(), self.strata.size * codes.size)
                for side in (codes.reference, codes.view)
            )
        return codes.weight, codes.size, reference, view

    @cached_property
    def _slots(self) -> tuple[Integers, Integers, Array, Array]:
        """Image, stratum, trials and own hits of each pair of an image and a stratum."""
        trials, stratum = self.trials, self.strata.number
        if self.strata.single:
            return trials.image, stratum, np.ones(len(stratum)), trials.hits
        if self.strata.size == 1:
            image = np.arange(trials.num_images)
            return image, np.zeros_like(image), trials.number.astype(np.float64), trials.within
        slots, slot = np.unique(trials.image * self.strata.size + stratum, return_inverse=True)
        order = np.argsort(slot, kind="stable")
        hits = within([codes.take(order) for codes in trials.alike], slot[order], len(slots))
        return slots // self.strata.size, slots % self.strata.size, np.bincount(slot).astype(np.float64), hits

    def _key(self, side: Integers, size: int, rows: slice = slice(None)) -> Integers:
        """Return the (stratum, code) cells of one side ``(M, F)``, or of some trials; codes are below ``size``."""
        return side[rows] if self.strata.size == 1 else self.strata.number[rows, None] * size + side[rows]

    def _blocks(self, codes: Codes) -> Iterator[slice]:
        """Yield which trials are looked at together: keys of millions would fill hundreds of megabytes."""
        step = max(1, NUMBERS_AT_ONCE // codes.reference.shape[1])
        for start in range(0, len(codes.reference), step):
            yield slice(start, start + step)

    @cached_property
    def _resampled(self) -> ResampledChance:
        trials = self.trials
        return ResampledChance(
            image=trials.image,
            similarity=trials.alike,
            stratum=self.strata.number,
            num_images=trials.num_images,
            histograms=trials.histograms if self.strata.size == 1 else None,
        )


def _sum_rows(values: Array) -> Array:
    """Return the sums of rows ``(M, F)``, column by column: rows of a few numbers take longer."""
    total: Array = reduce(np.add, values.T)
    return total
