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
from moeprobe.metrics.stats.draws import Draws
from moeprobe.metrics.stats.statistic import Array, divide, expanded
from moeprobe.metrics.stats.strata import Strata

Whole = NDArray[np.int64]

# Codes that are counted at a time, and those that are made at a time.
_BLOCK_CODES = 2**21
_MADE = 2**20


@dataclass(frozen=True)
class _Slots:
    """The trials that an image has in a stratum are one slot.

    Attributes:
        of_trial: ``(M,)`` slot of each trial.
        trials: how many each slot has.
        stratum: of each slot.
        image: of each slot.
    """

    of_trial: Whole
    trials: Array
    stratum: Whole
    image: Whole


class SubsetChance:
    """The Jaccard index that independent draws with the two sides' own marginals would reach, within strata.

    c, its draws of two images and its strata are those of ``chance.Chance``. Under weights it is its linear
    approximation.

    Args:
        image: ``(M,)`` image of each trial.
        reference: ``(M, K)`` the experts of the reference's token, all different.
        view: ``(M, K)`` those of the view's.
        strata: of the trials.
        num_experts: E.
        num_images: n.
    """

    def __init__(
        self,
        *,
        image: Whole,
        reference: Whole,
        view: Whole,
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
        value, influence = self._found
        return np.clip(expanded(value, influence, weights), 0.0, 1.0)

    def influence(self) -> Array:
        """Return the derivative of c by each image's weight."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[float, Array]:
        """Return c and the influences."""
        slots = self._slots
        of_slot = slots.trials
        draws = Draws(*(self._by_stratum(slots.stratum, number) for number in (of_slot, of_slot**2)))
        alike, own, of_image = self._alike(slots, draws.share)
        alike -= self._by_stratum(slots.stratum, own)
        of_trial, of_own_pair = draws.slopes(alike)
        of_own = of_own_pair[slots.stratum] * of_slot**2 - draws.share[slots.stratum] * own
        of_image += np.bincount(
            slots.image,
            weights=of_trial[slots.stratum] * of_slot + 2 * of_own,
            minlength=self._num_images,
        )
        return draws.level(alike), divide(of_image, draws.used)

    def _alike(self, slots: "_Slots", share: Array) -> tuple[Array, Array, Array]:
        """Return how alike the tokens of all pairs of trials are, and what of it is each image's own.

        Args:
            slots: of the trials.
            share: ``(s,)`` by how much a pair counts.

        Returns:
            By stratum ``(s,)``, all pairs; by slot, the pairs of its own trials; by image ``(n,)``, the derivative of
            the sum of all strata by the image's trials.
        """
        alike, of_image = np.zeros(self._num_strata), np.zeros(self._num_images)
        size = len(slots.trials)
        own = np.zeros(size)
        # A single trial is alone with itself.
        alone = size == len(slots.of_trial)
        if alone:
            own[slots.of_trial] = jaccard_of_choices(*self._sides)
        for weight, (number, row), (other_number, other_row), of_code in self._counted():
            one, other = (np.bincount(side, minlength=len(of_code)) for side in (number, other_number))
            alike += weight * self._by_stratum(of_code, one * other)
            for side, rows, opposite in ((number, row, other), (other_number, other_row, one)):
                slope = weight * share[of_code] * opposite
                of_image += np.bincount(self._image[rows], weights=slope[side], minlength=self._num_images)
            if not alone:
                shape = len(of_code), size
                left, right = (
                    sparse.csr_array(
                        sparse.coo_array((np.ones(len(side)), (side, slots.of_trial[rows])), shape=shape)
                    )
                    for side, rows in ((number, row), (other_number, other_row))
                )
                own += weight * left.multiply(right).sum(axis=0)
        return alike, own, of_image

    @cached_property
    def _slots(self) -> "_Slots":
        slots, of_trial = np.unique(self._stratum * self._num_images + self._image, return_inverse=True)
        trials = np.bincount(of_trial, minlength=len(slots)).astype(np.float64)
        return _Slots(of_trial, trials, slots // self._num_images, slots % self._num_images)

    def _by_stratum(self, stratum: Whole, values: NDArray[np.number]) -> Array:
        return np.bincount(stratum, weights=values, minlength=self._num_strata).astype(np.float64)

    def _counted(self) -> Iterator[tuple[float, tuple[Whole, Whole], tuple[Whole, Whole], Whole]]:
        """Yield for some subsets: their weight, number and row of those of either side, and the stratum of each number.

        Subsets have one number where they are the same in one stratum.
        """
        from pandas import factorize  # takes long to load, and lists of metrics need none of it

        for size in range(1, self._size + 1):
            parts = -(-2 * len(self._image) * comb(self._size, size) // _BLOCK_CODES)
            for part in range(parts):
                (one, row), (other, other_row) = (
                    self._codes(side, size, part, parts) for side in self._sides
                )
                stratum = np.concatenate([self._stratum[row], self._stratum[other_row]])
                number, cells = factorize(np.concatenate([one, other]) * self._num_strata + stratum)
                yield (
                    coefficient(size, self._size),
                    (number[: len(one)], row),
                    (number[len(one) :], other_row),
                    cells % self._num_strata,
                )

    def _codes(self, side: Whole, size: int, part: int, parts: int) -> tuple[Whole, Whole]:
        """Return those of a side's subsets of ``size`` experts that are in a part, and the rows they are of."""
        wide = comb(self._size, size)
        step = max(1, _MADE // (wide * size))
        found = []
        for start in range(0, max(len(side), 1), step):
            codes = subsets(side[start : start + step], size, num_experts=self._num_experts).ravel()
            row = start + np.arange(len(codes)) // wide
            if parts > 1:
                scattered = codes.astype(np.uint64) * SCATTER >> np.uint64(32)
                here = scattered % np.uint64(parts) == part
                codes, row = codes[here], row[here]
            found.append((codes, row))
        return np.concatenate([codes for codes, _ in found]), np.concatenate([row for _, row in found])
