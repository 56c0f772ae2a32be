"""How alike sets of K experts are by chance, for K so large that counts of all their subsets would not fit at once.

As in ``alike``, J = Σ_j b_j binom(c, j), with c the experts in common and binom(c, j) the subsets of j experts in both.
A set has 2^K − 1 subsets, 255 of the eight experts of many language models. They are counted for one j at a time, and
of these only as many as fit at once: time grows with the tokens, and memory with their sets.

Axes: M trials (pairs of tokens), F subsets of a set, n images, s strata.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.alike import SCATTER, ascending, coefficient, jaccard_of_choices, subsets
from moeprobe.metrics.stats.arrays import Array, Integers
from moeprobe.metrics.stats.chance.totals import Draws
from moeprobe.metrics.stats.chance.trials import Strata
from moeprobe.metrics.stats.statistic import divide, expanded

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
