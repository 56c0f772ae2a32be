"""The similarity of two tokens, as numbers that add up: codes that are the same on both sides.

Two tokens that chose the same are alike, others are not: one code each. Sets of K experts are alike by their Jaccard
index J = c / (2K − c), c the experts in common. As a polynomial of c it is Σ_j b_j binom(c, j), and binom(c, j) is how
many subsets of j experts are in both. So it too counts equal codes, here of subsets, and no pair of
tokens need be looked at to sum it over all pairs. The share of the K experts in common, c / K, counts single experts.

Axes: M pairs of tokens, F codes of a token, n images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array, Integers

# Codes are below this.
_CODE_BITS = np.uint64(38)
CODES = 2 ** int(_CODE_BITS)
# Bits of a word of a set.
WORD_BITS = 64
# An odd number without a pattern, 2**64 divided by the golden ratio.
SCATTER = np.uint64(0x9E3779B97F4A7C15)
# Numbers of histograms, or codes, of some groups that are held at a time: they stay in the processor's cache.
_BLOCK_NUMBERS = 2**16
# Places of a histogram for each code that is counted, up to which it is quicker than a sort.
_SPARSEST = 16


@dataclass(frozen=True)
class Codes:
    """Codes of M pairs of tokens.

    Attributes:
        weight: by how much one code that is the same on both sides makes two tokens alike.
        reference: ``(M, F)`` codes of the reference's token.
        view: ``(M, F)`` codes of the view's.
        size: codes are below this.
    """

    weight: float
    reference: Integers
    view: Integers
    size: int = CODES

    def take(self, rows: NDArray[np.generic]) -> "Codes":
        """Return the codes of some of the pairs."""
        return Codes(self.weight, self.reference[rows], self.view[rows], self.size)


Alike = Sequence[Codes]


def same(reference: Integers, view: Integers, *, size: int = CODES) -> Alike:
    """Return the similarity of tokens with one code ``(M,)`` each: 1 where the codes are equal."""
    return (Codes(1.0, reference[:, None], view[:, None], size),)


def jaccard(reference: NDArray[np.generic], view: NDArray[np.generic], *, num_experts: int) -> Alike:
    """Return the similarity of sets of K experts ``(M, K)``: their Jaccard index."""
    size = reference.shape[1]
    sides = [np.asarray(ascending(side), dtype=np.int64) for side in (reference, view)]
    levels = []
    for number in range(1, size + 1):
        codes = [subsets(side, number, num_experts=num_experts) for side in sides]
        levels.append(Codes(coefficient(number, size), codes[0], codes[1], min(num_experts**number, CODES)))
    return levels


def overlap(reference: Integers, view: Integers, *, num_experts: int) -> Alike:
    """Return the similarity of sets of K experts ``(M, K)``: the share of the K that is in both; below 0 = none."""
    # What is absent gets a code that the other side never has. Narrow numbers stay narrow: they compare faster.
    codes = [np.where(side < 0, num_experts + bit, side) for bit, side in enumerate((reference, view))]
    return (Codes(1 / reference.shape[1], codes[0], codes[1], num_experts + 2),)


def coefficient(number: int, size: int) -> float:
    """Return b_j of the Jaccard index of sets of K: the difference of order j of c / (2K − c) at c = 0.

    Two sets of two with one expert in common have J = 1/3 = b₁, with both in common J = 1 = 2 b₁ + b₂:

    >>> from moeprobe.metrics.stats.alike import coefficient
    >>> round(coefficient(1, 2), 3), round(coefficient(2, 2), 3)
    (0.333, 0.333)
    """
    return sum((-1) ** (number - c) * comb(number, c) * c / (2 * size - c) for c in range(number + 1))


def subsets(side: Integers, number: int, *, num_experts: int) -> Integers:
    """Return the codes of all subsets of ``number`` experts ``(M, F)`` of sets in ascending order ``(M, K)``."""
    columns = np.array(list(combinations(range(side.shape[1]), number)))
    return encode(side[:, columns], base=num_experts)


def encode(rows: NDArray[np.generic], *, base: int) -> Integers:
    """Return one code per row of numbers from 0 to ``base`` − 1 ``(..., K)``, the same where the rows are the same.

    Where there are more rows than codes, codes are scattered: of a million different rows one pair may share one.
    """
    depth = rows.shape[-1]
    if base**depth <= CODES:
        code = rows[..., depth - 1].astype(np.int64)
        for column in range(depth - 2, -1, -1):
            code = code * base + rows[..., column].astype(np.int64)
        return code
    if base**depth <= 2**64:
        word: NDArray[np.uint64] = np.zeros(rows.shape[:-1], dtype=np.uint64)
        for column in range(depth):
            word *= np.uint64(base)
            word += rows[..., column].astype(np.uint64)
        return scatter([word])
    return scatter([rows[..., column].astype(np.uint64) for column in range(depth)])


def set_words(choices: NDArray[Any], num_experts: int) -> list[NDArray[np.uint64]]:
    """Return sets of choices ``(M, K)`` as bits, in as many words ``(M,)`` as they take; choices below 0 are none."""
    columns = [choices[:, column].astype(np.uint64) for column in range(choices.shape[1])]
    words = []
    for word in range(-(-num_experts // WORD_BITS)):
        bits = np.zeros(len(choices), dtype=np.uint64)
        for column in columns:
            # What is outside of a word is shifted by more than its bits, to 0: choices below it and none wrap around.
            bits |= np.uint64(1) << column - np.uint64(word * WORD_BITS)
        words.append(bits)
    return words


def same_sets(reference: NDArray[np.uint64], view: NDArray[np.uint64], *, num_experts: int) -> Alike:
    """Return the similarity of sets of words ``(W, M)``: 1 where the sets are equal."""
    if 2**num_experts <= CODES:
        return same(reference[0].astype(np.int64), view[0].astype(np.int64), size=2**num_experts)
    return same(scatter(list(reference)), scatter(list(view)))


def scatter(words: Sequence[NDArray[np.uint64]]) -> Integers:
    """Return one code below ``CODES`` for words of each token, the same where the words are the same."""
    code = np.zeros(words[0].shape, dtype=np.uint64)
    for word in words:
        code = (code ^ word) * SCATTER
        code ^= code >> np.uint64(29)
    # Once more, since a product's last bits depend on the last ones of its factors alone.
    return (code * SCATTER >> np.uint64(64) - _CODE_BITS).astype(np.int64)


def jaccard_of_choices(reference: NDArray[np.generic], view: NDArray[np.generic]) -> Array:
    """Return the Jaccard index ``(M,)`` of sets of K experts each ``(M, K)``, row by row.

    The sets {0, 1} and {0, 2} have one of three experts in common, the other two are the same in another order:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.alike import jaccard_of_choices
    >>> jaccard_of_choices(np.array([[0, 1], [2, 3]]), np.array([[0, 2], [3, 2]])).round(3).tolist()
    [0.333, 1.0]
    """
    size = reference.shape[1]
    common = _num_equal(reference, view)
    return common / (2 * size - common)


def _num_equal(reference: NDArray[np.generic], view: NDArray[np.generic]) -> Array:
    """Return how many pairs of a number of the reference's row and one of the view's are equal ``(M,)``."""
    if reference.shape[1] == view.shape[1] == 1:
        return np.equal(reference[:, 0], view[:, 0]).astype(np.float64)
    # Columns beside each other are added up faster than the few numbers of each row.
    rows, columns = (np.ascontiguousarray(side.T) for side in (reference, view))
    total = np.zeros(len(reference))
    # The fewer bits a sum has, the faster.
    kind = np.int8 if len(columns) <= np.iinfo(np.int8).max else np.int64
    for row in rows:
        total += (row == columns).sum(0, dtype=kind)
    return total


def ascending(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return rows of numbers ``(M, K)``, each in ascending order."""
    if rows.shape[1] != 2:
        return np.sort(rows, axis=1)
    # The commonest case, many times faster.
    first, second = rows[:, 0], rows[:, 1]
    return np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)


def of_pairs(similarity: Alike) -> Array:
    """Return how alike the two tokens of each pair are ``(M,)``."""
    total = np.zeros(len(similarity[0].reference))
    for codes in similarity:
        total += codes.weight * _num_equal(codes.reference, codes.view)
    return total


def within(similarity: Alike, group: Integers, num_groups: int) -> Array:
    """Return how alike the reference's tokens and the view's of a group are, summed over all of them by all of them.

    ``group`` ``(M,)`` ascends.
    """
    sums = np.zeros(num_groups)
    starts = np.searchsorted(group, np.arange(num_groups + 1))
    for codes in similarity:
        is_dense = codes.size * num_groups <= _SPARSEST * codes.reference.size
        sums += codes.weight * (_equal_counted if is_dense else _equal_sorted)(codes, starts)
    return sums


def _equal_counted(codes: Codes, starts: Integers) -> Array:
    """Return how many codes of the two sides of each group are equal, each with each; of few codes."""
    num_groups = len(starts) - 1
    sums = np.zeros(num_groups)
    step = max(1, _BLOCK_NUMBERS // max(codes.size, 1))
    for first in range(0, num_groups, step):
        bounds = starts[first : first + step + 1]
        rows, lengths = slice(bounds[0], bounds[-1]), np.diff(bounds)
        offset = (np.repeat(np.arange(len(lengths)), lengths) * codes.size)[:, None]
        of_view = np.bincount((offset + codes.view[rows]).ravel(), minlength=len(lengths) * codes.size)
        # A code of the reference is equal to as many as the view has of it.
        equal = of_view.take(offset + codes.reference[rows]).sum(1)
        present = np.flatnonzero(lengths)
        if len(present):
            sums[first + present] = np.add.reduceat(equal, bounds[present] - bounds[0])
    return sums


def _equal_sorted(codes: Codes, starts: Integers) -> Array:
    """Return the same of many different codes: as rows, groups are sorted ten times faster than all codes at once."""
    lengths, width = np.diff(starts), codes.reference.shape[1]
    sums = np.zeros(len(lengths))
    # The longest first, so that rows that are sorted together are about as long.
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    # Twice each code and its side, and the number that fills shorter rows.
    dtype = np.int32 if 2 * codes.size + 1 < 2**31 else np.int64
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        groups = order[start : start + max(1, _BLOCK_NUMBERS // (2 * longest * width))]
        offsets = np.arange(longest)
        absent = offsets >= lengths[groups, None]
        rows = (starts[groups, None] + offsets).clip(max=len(codes.reference) - 1)
        keys = np.empty((len(groups), 2, longest, width), dtype=dtype)
        for bit, side in enumerate((codes.reference, codes.view)):
            # The last bit says of which side a code is, so that one sort brings equal codes of both together.
            keys[:, bit] = side.take(rows, axis=0)
            keys[:, bit] *= 2
            keys[:, bit] += bit
            # Behind a shorter group stands a code of the reference that no view has.
            keys[:, bit][absent] = 2 * codes.size
        sums[groups] = _sum_equal(keys.reshape(len(groups), -1))
        start += len(groups)
    return sums


def _sum_equal(keys: Integers) -> Array:
    """Return how many pairs of an even number and the next odd one each row ``(G, N)`` has; the rows are sorted."""
    keys.sort(axis=1)
    first = np.ones(keys.shape, dtype=bool)
    np.not_equal(keys[:, 1:], keys[:, :-1], out=first[:, 1:])
    start = np.flatnonzero(first)
    different = keys.ravel()[start]
    even = np.flatnonzero(different[:-1] ^ 1 == different[1:])
    odd_start = start[even + 1]
    products = odd_start - start[even]
    products *= np.append(start[1:], keys.size)[even + 1] - odd_start
    row_starts = np.arange(len(keys) + 1) * keys.shape[1]
    bounds = np.searchsorted(odd_start, row_starts)
    # What begins a row stands beside the end of another one.
    beside = bounds[np.append(odd_start, -1)[bounds] == row_starts]
    products[beside] = 0
    return np.diff(np.append(0, np.cumsum(products))[bounds]).astype(np.float64)


def runs(keys: Integers) -> tuple[Integers, NDArray[np.uint32]]:
    """Return the different keys, ascending, and how often each occurs."""
    # A sort alone takes a tenth of the time of one that keeps track of where keys come from.
    ordered = np.sort(keys, axis=None)
    start = np.flatnonzero(is_first(ordered))
    # 32 bits are enough for counts, and save a quarter of the memory that millions of keys take.
    return ordered[start], np.diff(start, append=len(ordered)).astype(np.uint32)


def is_first(ordered: Integers) -> NDArray[np.bool_]:
    """Return which of ascending keys differ from the one before."""
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
