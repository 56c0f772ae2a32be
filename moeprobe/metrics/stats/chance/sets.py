"""How alike sets of experts are by chance, from all pairs of the sets that occur. ``sampled`` is for many tokens.

Axes: R resamples, n images, M pairs of tokens, U sets, E experts.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from moeprobe.metrics.stats.chance.strata import are_thin
from moeprobe.metrics.stats.statistic import Array, Integers, divide, expand_linearly
from moeprobe.runtime.caching import cache_last

# Sets as ones and zeros, in any precision.
Members = NDArray[np.floating]

# Numbers held at a time.
_BLOCK_NUMBERS = 2**22


def jaccard(reference: Members, view: Members) -> Array:
    """Return |S ∩ T| / |S ∪ T| ``(A, B)`` of sets ``(A, E)``, ``(B, E)`` of zeros and ones; 0 where both are empty.

    The set {0, 1} beside {0, 2} and beside itself, 1 of 3 and 2 of 2 in common:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.chance.sets import jaccard
    >>> jaccard(np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])).round(3).tolist()
    [[0.333, 1.0]]
    """
    common = (reference @ view.T).astype(np.float64)
    union = reference.sum(1)[:, None] + view.sum(1) - common
    return common / np.maximum(union, 1)


class SetChance:
    """The Jaccard index that independent draws with the two sides' own marginals would reach, within strata.

    c = Σ_s (N_s / P_s) Σ_{S,T} n_A(S) n_B(T) J(S, T) / Σ_s (N_s / P_s) Σ_{S,T} n_A(S) n_B(T) [S or T is not empty],
    over the sets S of the reference and T of the view in stratum s, with N_s pairs of tokens and P_s draws. As in the
    match, two empty sets are no trial: they count for the marginals, since either side may be empty alone, but a draw
    of two of them is left out. A draw is of two images, as in ``levels.Chance``; so is what holds of thin strata.

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

    @cache_last
    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        # Rounding may leave a collapsed router a hair above one.
        return np.clip(self._under(weights), 0.0, 1.0)

    def _under(self, weights: Array) -> Array:
        if self._is_thin:
            # Thin strata lack pairs in many resamples; the linear approximation needs only the full sample.
            once = np.ones((self._num_images, 1))
            return expand_linearly(float(self._agreement_of_resamples(once)[0]), self.influence(), weights)
        return self._agreement_of_resamples(weights)

    def _agreement_of_resamples(self, weights: Array) -> Array:
        agree, draws = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
        for stratum in self._strata:
            own_agree, own_draws = stratum.expected_agreement(weights[stratum.image])
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
        # Pairs within one image are no draws: they are subtracted from all pairs.
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

    def expected_agreement(self, weights: Array) -> tuple[Array, Array]:
        """Return (N / P) Σ J and (N / P) times the draws that count, under weights ``(m, R)``."""
        trials, pairs, draws = self._draws(weights)
        share = divide(trials, pairs, empty=0.0)
        agree = -self._own_agree @ weights**2
        reference, view = self._left @ weights, self._right @ weights
        for block, similarity in self._similarities():
            agree += (reference[block] * (similarity @ view)).sum(0)
        return share * agree, share * draws

    def slopes(self) -> tuple[tuple[float, float], tuple[Array, Array]]:
        """Return the two numbers of ``expected_agreement`` with all weights one, and their derivatives ``(m,)``."""
        once = np.ones((len(self.image), 1))
        trials, pairs, draws = (float(number[0]) for number in self._draws(once))
        # A stratum with one image has no pair of two images, and adds nothing.
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


def among_themselves(group: Integers, reference: Members, view: Members, num_groups: int) -> Array:
    """Return Σ_{p, q} J(reference_p, view_q) ``(num_groups,)`` over all p and q of a group, of sets ``(M, E)``."""
    sizes = np.bincount(group, minlength=num_groups)
    if len(group) == 0:
        return np.zeros(num_groups)
    # With one pair in each group there are no partners to pad for.
    if sizes.max() == 1:
        alone = np.bincount(group, weights=jaccard_of_pairs(reference, view), minlength=num_groups)
        return alone.astype(np.float64)
    order = np.argsort(group, kind="stable")
    index = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    longest, num_experts = int(sizes.max()), reference.shape[1]
    sums = np.zeros(num_groups)
    # The padded blocks below have longest² similarities per group.
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
        # Whole numbers, so single precision is exact up to here.
        common = (sides[0] @ sides[1].transpose(0, 2, 1)).astype(np.float64)
        union = sides[0].sum(2)[:, :, None] + sides[1].sum(2)[:, None] - common
        similarity = common / np.maximum(union, 1)
        sums[start : start + step] = similarity.sum((1, 2))
    return sums


def jaccard_of_pairs(reference: Members, view: Members) -> Array:
    """Return |S ∩ T| / |S ∪ T| ``(M,)``, row by row, of sets ``(M, E)``; 0 where both are empty."""
    common = (reference * view).sum(1, dtype=np.float64)
    return common / np.maximum(reference.sum(1) + view.sum(1) - common, 1)
