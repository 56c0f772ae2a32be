"""How alike two sides are by chance, where alike is no plain yes or no: sets of experts, vectors of weights.

Of sets of K experts, with K so large that counts of all their subsets would not fit at once, the subsets are counted
for one size at a time. As in ``alike``, J = Σ_j b_j binom(c, j), with c the experts in common and binom(c, j) the
subsets of j experts in both. A set has 2^K − 1 subsets, 255 of the eight experts of many language models. Of these only
as many are counted as fit at once: time grows with the tokens, and memory with their sets.

Axes: R resamples, n images, M pairs of tokens, U sets, E experts, F entries of a vector or subsets of a set, s strata.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.alike import SCATTER, ascending, coefficient, jaccard_of_choices, same, subsets
from moeprobe.metrics.stats.chance.totals import Draws
from moeprobe.metrics.stats.chance.trials import Strata, Tokens, Trials, apart, are_thin, per_trial
from moeprobe.metrics.stats.statistic import Array, Integers, Share, divide, expanded, remembered

# Sets as ones and zeros, in any precision.
Members = NDArray[np.floating]

# Numbers held at a time.
_BLOCK_NUMBERS = 2**22


def jaccard(reference: Members, view: Members) -> Array:
    """Return |S ∩ T| / |S ∪ T| ``(A, B)`` of sets ``(A, E)``, ``(B, E)`` of zeros and ones; 0 where both are empty."""
    common = (reference @ view.T).astype(np.float64)
    union = reference.sum(1)[:, None] + view.sum(1) - common
    return common / np.maximum(union, 1)


class SetChance:
    """The Jaccard index that independent draws with the two sides' own marginals would reach, within strata.

    c = Σ_s (N_s / P_s) Σ_{S,T} n_A(S) n_B(T) J(S, T) / Σ_s (N_s / P_s) Σ_{S,T} n_A(S) n_B(T) [S or T is not empty],
    over the sets S of the reference and T of the view in stratum s, with N_s pairs of tokens and P_s draws. As in the
    match, two empty sets are no trial: they count for the marginals, since either side may be empty alone, but a draw
    of two of them is left out. A draw is of two images, as in ``chance.Chance``; so is what holds of thin strata.

    Args:
        image: ``(M,)`` image number of each pair of tokens.
        reference: ``(M,)`` number of the reference's set.
        view: ``(M,)`` number of the view's set.
        sets: ``(U, E)`` the sets, ones where an expert is in.
        stratum: ``(M,)`` stratum of each pair.
        num_images: n.
    """

    def __init__(
        self,
        *,
        image: Integers,
        reference: Integers,
        view: Integers,
        sets: Members,
        stratum: Integers,
        num_images: int,
    ) -> None:
        self._num_images = num_images
        order = np.argsort(stratum, kind="stable")
        cuts = np.flatnonzero(np.diff(stratum[order])) + 1
        self._strata = [
            _Stratum(image[rows], reference[rows], view[rows], sets)
            for rows in np.split(order, cuts)
            if len(rows)
        ]
        number = [np.full(len(stratum_sets.image), at) for at, stratum_sets in enumerate(self._strata)]
        trials = [stratum_sets.trials for stratum_sets in self._strata]
        self._is_thin = len(number) > 1 and are_thin(
            np.concatenate(number), np.concatenate(trials), size=len(number), num_images=num_images
        )

    @remembered
    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(self._under(weights), 0.0, 1.0)

    def _under(self, weights: Array) -> Array:
        if self._is_thin:
            once = np.ones((self._num_images, 1))
            return expanded(float(self._resampled(once)[0]), self.influence(), weights)
        return self._resampled(weights)

    def _resampled(self, weights: Array) -> Array:
        agree, draws = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
        for stratum in self._strata:
            own_agree, own_draws = stratum.expected(weights[stratum.image])
            agree += own_agree
            draws += own_draws
        return divide(agree, draws)

    def influence(self) -> Array:
        """Return the derivative of c, stratum by stratum."""
        slopes = [stratum.slopes() for stratum in self._strata]
        agree, draws = (sum((value[side] for value, _ in slopes), 0.0) for side in (0, 1))
        value = divide(np.asarray(agree), np.asarray(draws), empty=0.0)
        influence = np.zeros(self._num_images)
        for stratum, (_, (of_agree, of_draws)) in zip(self._strata, slopes, strict=True):
            influence[stratum.image] += of_agree - value * of_draws
        return divide(influence, np.asarray(draws))


class _Stratum:
    """The sets of one stratum: how often each occurs in each of its m images."""

    def __init__(self, image: Integers, reference: Integers, view: Integers, sets: Members) -> None:
        self.image, number = np.unique(image, return_inverse=True)
        size = len(self.image)
        self.trials = np.bincount(number).astype(np.float64)
        empty = sets.sum(1) == 0
        self._empty = [np.bincount(number, weights=empty[side]) for side in (reference, view)]
        self._own_agree = among_themselves(number, sets[reference], sets[view], size)
        (self._rows, self._left), (self._columns, self._right) = (
            _occurrences(side, number, sets, size) for side in (reference, view)
        )
        self._folded: Array | None = None
        if size < min(len(self._rows), len(self._columns)):
            # Fewer images than sets: what they have in common, image by image.
            folded = np.zeros((size, size))
            for block, similarity in self._similarities():
                folded += self._left[block].T @ (similarity @ self._right)
            self._folded = folded
            self._left = self._right = sparse.csr_array(sparse.eye_array(size))

    def _similarities(self) -> Iterator[tuple[slice, Array]]:
        """Yield the similarity of left and right, in blocks of rows."""
        rows, columns = self._left.shape[0], self._right.shape[0]
        step = max(1, _BLOCK_NUMBERS // max(columns, 1))
        for start in range(0, rows, step):
            block = slice(start, start + step)
            if self._folded is not None:
                yield block, self._folded[block]
            else:
                yield block, jaccard(self._rows[block], self._columns)

    def _draws(self, weights: Array) -> tuple[Array, Array, Array]:
        """Return N, the pairs P of tokens to draw from, and the pairs of which at least one set is not empty."""
        squared = weights**2
        trials = self.trials @ weights
        pairs = trials**2 - self.trials**2 @ squared
        empty_reference, empty_view = self._empty
        empty_pairs = (empty_reference @ weights) * (empty_view @ weights)
        return trials, pairs, pairs - empty_pairs + (empty_reference * empty_view) @ squared

    def expected(self, weights: Array) -> tuple[Array, Array]:
        """Return (N / P) Σ J and (N / P) times the draws that count, under weights ``(m, R)``."""
        trials, pairs, draws = self._draws(weights)
        share = divide(trials, pairs, empty=0.0)
        agree = -self._own_agree @ weights**2
        reference, view = self._left @ weights, self._right @ weights
        for block, similarity in self._similarities():
            agree += (reference[block] * (similarity @ view)).sum(0)
        return share * agree, share * draws

    def slopes(self) -> tuple[tuple[float, float], tuple[Array, Array]]:
        """Return the two numbers of ``expected`` with all weights one, and their derivatives ``(m,)``."""
        once = np.ones((len(self.image), 1))
        trials, pairs, draws = (float(number[0]) for number in self._draws(once))
        if pairs == 0:
            return (0.0, 0.0), (0 * once[:, 0], 0 * once[:, 0])
        reference, view = (self._left @ once)[:, 0], (self._right @ once)[:, 0]
        to_left, to_right = np.zeros(len(reference)), np.zeros(len(view))
        for block, similarity in self._similarities():
            to_left[block] = similarity @ view
            to_right += reference[block] @ similarity
        empty_reference, empty_view = self._empty
        share = trials / pairs
        of_pairs = 2 * trials * self.trials - 2 * self.trials**2
        of_share = self.trials / pairs - share * of_pairs / pairs
        agree = reference @ to_left - self._own_agree.sum()
        of_agree = self._left.T @ to_left + self._right.T @ to_right - 2 * self._own_agree
        of_draws = of_pairs - empty_reference * empty_view.sum() - empty_view * empty_reference.sum()
        of_draws = of_draws + 2 * empty_reference * empty_view
        return (share * agree, share * draws), (
            of_share * agree + share * of_agree,
            of_share * draws + share * of_draws,
        )


def _occurrences(
    side: Integers, number: Integers, sets: Members, size: int
) -> tuple[Members, sparse.csr_array]:
    """Return the sets ``(U, E)`` that occur on a side, and how often in each image ``(U, m)``."""
    occurring, row = np.unique(side, return_inverse=True)
    counts = sparse.coo_array((np.ones(len(side)), (row, number)), shape=(len(occurring), size))
    return sets[occurring], sparse.csr_array(counts)


def among_themselves(
    group: Integers, reference: Members, view: Members, num_groups: int, *, tokens: Tokens | None = None
) -> Array:
    """Return Σ_{p, q} J(reference_p, view_q) ``(num_groups,)`` over all p and q of a group, of sets ``(M, E)``.

    With ``tokens`` (see ``within_image``) two pairs with a token in common, as p and p have, are left out.
    """
    sizes = np.bincount(group, minlength=num_groups)
    if len(group) == 0:
        return np.zeros(num_groups)
    if tokens is None and sizes.max() == 1:
        alone = np.bincount(group, weights=jaccard_of_pairs(reference, view), minlength=num_groups)
        return alone.astype(np.float64)
    order = np.argsort(group, kind="stable")
    index = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    longest, num_experts = int(sizes.max()), reference.shape[1]
    sums = np.zeros(num_groups)
    step = max(1, _BLOCK_NUMBERS // longest**2)
    for start in range(0, num_groups, step):
        in_block = (group[order] >= start) & (group[order] < start + step)
        rows, at = group[order][in_block] - start, index[in_block]
        # Absent ones are empty sets, which have nothing in common with any.
        sides = []
        for values in (reference, view):
            padded = np.zeros((min(step, num_groups - start), longest, num_experts), dtype=values.dtype)
            padded[rows, at] = values[order[in_block]]
            sides.append(padded)
        # Integers numbers, so single precision is exact up to here.
        common = (sides[0] @ sides[1].transpose(0, 2, 1)).astype(np.float64)
        union = sides[0].sum(2)[:, :, None] + sides[1].sum(2)[:, None] - common
        similarity = common / np.maximum(union, 1)
        for token in tokens or ():
            number = np.full(similarity.shape[:2], -1)
            number[rows, at] = token[order[in_block]]
            similarity[number[:, :, None] == number[:, None]] = 0
        sums[start : start + step] = similarity.sum((1, 2))
    return sums


def jaccard_of_pairs(reference: Members, view: Members) -> Array:
    """Return |S ∩ T| / |S ∪ T| ``(M,)``, row by row, of sets ``(M, E)``; 0 where both are empty."""
    common = (reference * view).sum(1, dtype=np.float64)
    return common / np.maximum(reference.sum(1) + view.sum(1) - common, 1)


def set_chance_within_image(
    *, image: Integers, reference: Members, view: Members, tokens: Tokens, num_images: int
) -> tuple[Share, NDArray[np.bool_]]:
    """Return the Jaccard index of a token with *another* token of its image, two empty sets left out.

    The images are weighted by their pairs of tokens, and those without two pairs that have no token in common take no
    part: the second result ``(n,)`` says which do.

    Args:
        image: ``(M,)`` image number of each pair of tokens.
        reference: ``(M, E)`` the reference's sets, ones where an expert is in.
        view: ``(M, E)`` the view's.
        tokens: as for ``within_image``.
        num_images: n.
    """
    agree = among_themselves(image, reference, view, num_images, tokens=tokens)
    # The code of an empty set is 0 on either side, that of another one is not the same on both.
    codes = [np.where(side.any(1), code, 0) for code, side in ((1, reference), (2, view))]
    trials_of_sets = Trials(image, same(codes[0], codes[1]), num_images=num_images)
    (pairs, left_out), trials = apart(trials_of_sets, tokens), trials_of_sets.number.astype(np.float64)
    match, draws = (per_trial(total, pairs, trials).numerator for total in (agree, pairs - left_out))
    return Share(match, draws), pairs > 0


# Codes that are counted at a time, and those that are made at a time.
_BLOCK_CODES = 2**21
_MADE = 2**20


@dataclass(frozen=True)
class _Slots:
    """The trials of an image in a stratum are one slot.

    Attributes:
        of_trial: ``(M,)`` slot of each trial.
        trials: how many each slot has.
        stratum: of each slot.
        image: of each slot.
    """

    of_trial: Integers
    trials: Array
    stratum: Integers
    image: Integers


class SubsetChance:
    """The Jaccard index that independent draws with the two sides' own marginals would reach, within strata.

    c, its draws of two images and its strata are defined as in ``chance.Chance``. Under weights it is its linear
    approximation.

    Args:
        image: ``(M,)`` image of each trial.
        reference: ``(M, K)`` the experts of the reference's token, all different.
        view: ``(M, K)`` the experts of the view's token.
        strata: of the trials.
        num_experts: E.
        num_images: n.
    """

    def __init__(
        self,
        *,
        image: Integers,
        reference: Integers,
        view: Integers,
        strata: Strata,
        num_experts: int,
        num_images: int,
    ) -> None:
        self._image = image
        self._sides = [np.asarray(ascending(side), dtype=np.int64) for side in (reference, view)]
        self._size, self._num_experts, self._num_images = reference.shape[1], num_experts, num_images
        different, self._stratum = np.unique(strata.number, return_inverse=True)
        self._num_strata = len(different)

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights, to first order."""
        value, influence = self._value_and_influence
        return np.clip(expanded(value, influence, weights), 0.0, 1.0)

    def influence(self) -> Array:
        """Return the derivative of c by each image's weight."""
        return self._value_and_influence[1]

    @cached_property
    def _value_and_influence(self) -> tuple[float, Array]:
        """Return c and the influences."""
        slots = self._slots
        of_slot = slots.trials
        draws = Draws(*(self._by_stratum(slots.stratum, number) for number in (of_slot, of_slot**2)))
        similarity, own_similarity, of_image = self._similarity(slots, draws.share)
        similarity -= self._by_stratum(slots.stratum, own_similarity)
        of_trial, of_own_pair = draws.slopes(similarity)
        of_own = of_own_pair[slots.stratum] * of_slot**2 - draws.share[slots.stratum] * own_similarity
        of_image += np.bincount(
            slots.image,
            weights=of_trial[slots.stratum] * of_slot + 2 * of_own,
            minlength=self._num_images,
        )
        return draws.level(similarity), divide(of_image, draws.num_trials)

    def _similarity(self, slots: "_Slots", share: Array) -> tuple[Array, Array, Array]:
        """Return how alike the tokens of all pairs of trials are, and what of it is each image's own.

        Args:
            slots: of the trials.
            share: ``(s,)`` by how much a pair counts.

        Returns:
            By stratum ``(s,)``, all pairs; by slot, the pairs of its own trials; by image ``(n,)``, the derivative of
            the sum of all strata by the image's trials.
        """
        similarity, of_image = np.zeros(self._num_strata), np.zeros(self._num_images)
        size = len(slots.trials)
        own_similarity = np.zeros(size)
        # A single trial is alone with itself.
        alone = size == len(slots.of_trial)
        if alone:
            own_similarity[slots.of_trial] = jaccard_of_choices(*self._sides)
        for weight, (number, row), (other_number, other_row), of_code in self._subset_counts():
            reference_counts, view_counts = (
                np.bincount(side, minlength=len(of_code)) for side in (number, other_number)
            )
            similarity += weight * self._by_stratum(of_code, reference_counts * view_counts)
            for side, rows, opposite in (
                (number, row, view_counts),
                (other_number, other_row, reference_counts),
            ):
                slope = weight * share[of_code] * opposite
                of_image += np.bincount(self._image[rows], weights=slope[side], minlength=self._num_images)
            if not alone:
                shape = len(of_code), size
                reference, view = (
                    sparse.csr_array(
                        sparse.coo_array((np.ones(len(side)), (side, slots.of_trial[rows])), shape=shape)
                    )
                    for side, rows in ((number, row), (other_number, other_row))
                )
                own_similarity += weight * reference.multiply(view).sum(axis=0)
        return similarity, own_similarity, of_image

    @cached_property
    def _slots(self) -> "_Slots":
        slots, of_trial = np.unique(self._stratum * self._num_images + self._image, return_inverse=True)
        trials = np.bincount(of_trial, minlength=len(slots)).astype(np.float64)
        return _Slots(of_trial, trials, slots // self._num_images, slots % self._num_images)

    def _by_stratum(self, stratum: Integers, values: NDArray[np.number]) -> Array:
        return np.bincount(stratum, weights=values, minlength=self._num_strata).astype(np.float64)

    def _subset_counts(
        self,
    ) -> Iterator[tuple[float, tuple[Integers, Integers], tuple[Integers, Integers], Integers]]:
        """Yield for some subsets: their weight, number and row on either side, and the stratum of each number.

        Subsets have one number where they are the same in one stratum.
        """
        from pandas import factorize  # takes long to load, and lists of metrics need none of it

        for size in range(1, self._size + 1):
            parts = -(-2 * len(self._image) * comb(self._size, size) // _BLOCK_CODES)
            for part in range(parts):
                (reference_codes, row), (view_codes, other_row) = (
                    self._codes(side, size, part, parts) for side in self._sides
                )
                stratum = np.concatenate([self._stratum[row], self._stratum[other_row]])
                number, cells = factorize(
                    np.concatenate([reference_codes, view_codes]) * self._num_strata + stratum
                )
                yield (
                    coefficient(size, self._size),
                    (number[: len(reference_codes)], row),
                    (number[len(reference_codes) :], other_row),
                    cells % self._num_strata,
                )

    def _codes(self, side: Integers, size: int, part: int, parts: int) -> tuple[Integers, Integers]:
        """Return the codes of a side's subsets of ``size`` experts in a part, and their rows."""
        wide = comb(self._size, size)
        step = max(1, _MADE // (wide * size))
        blocks = []
        for start in range(0, max(len(side), 1), step):
            codes = subsets(side[start : start + step], size, num_experts=self._num_experts).ravel()
            row = start + np.arange(len(codes)) // wide
            if parts > 1:
                scattered = codes.astype(np.uint64) * SCATTER >> np.uint64(32)
                in_part = scattered % np.uint64(parts) == part
                codes, row = codes[in_part], row[in_part]
            blocks.append((codes, row))
        return np.concatenate([codes for codes, _ in blocks]), np.concatenate([row for _, row in blocks])
