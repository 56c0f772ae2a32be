"""How alike sets of experts are by chance, from pairs of tokens that are drawn: time grows with tokens, not with sets.

All pairs of M tokens are M², and all subsets of a set of K experts are 2^K − 1. A chance level needs neither: only the
mean over pairs, and the mean over the pairs of each image. Each token meets some partners of its stratum. In one draw
they are the tokens a number of steps further in a random order. So every token takes part once on either side: what
sets tokens apart on the whole cancels, and only what two of them have in common is drawn. A stratum with no more tokens
than partners is enumerated, and its level is exact.

Draws belong to the trials and not to a run or checkpoint: differences between checkpoints are of the same pairs.

Axes: M pairs of tokens, n images, W words, s strata, R resamples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import SCATTER, WORD_BITS, same, set_words
from moeprobe.metrics.stats.chance.strata import Strata
from moeprobe.metrics.stats.chance.trials import Tokens, Trials, apart, per_image, per_trial
from moeprobe.metrics.stats.statistic import Array, Integers, Share, divide, expand_linearly
from moeprobe.runtime.seeds import generator

# Half the bits of a word.
_HALF = np.uint64(WORD_BITS // 2)
# Partners of a token, at least; and pairs of a level, at least, where there are as many.
PARTNERS, PAIRS = 64, 2**20
# The same within an image, since images differ by more than the draw; and tokens of an image that all meet.
_PARTNERS_WITHIN, ALL_WITHIN = 8, 32
# Pairs that are compared at a time, so that they stay in the processor's cache.
_AT_ONCE = 2**14
# Trials of a stratum from which on it is compared by itself.
_LARGE = 2**9


@dataclass(frozen=True)
class Sets:
    """Sets of experts of M tokens, as bits.

    Attributes:
        words: ``(W, M)``.
        sizes: experts of each ``(M,)``.
    """

    words: NDArray[np.uint64]
    sizes: Array

    def take(self, rows: NDArray[np.generic] | slice) -> "Sets":
        """Return the sets of some of the tokens."""
        if isinstance(rows, slice):
            return Sets(self.words[:, rows], self.sizes[rows])
        # Word by word, in a third of the time; of sets of one size nothing is gathered.
        words = np.stack([word[rows] for word in self.words])
        size = self.common_size
        return Sets(words, self.sizes[rows] if size is None else _as_large(size, words.shape[1]))

    @property
    def common_size(self) -> int | None:
        """How many experts every set has, where that is kept once for all; else None."""
        return int(self.sizes[0]) if len(self.sizes) and self.sizes.strides == (0,) else None

    def members(self) -> Array:
        """Return them as ones and zeros ``(M, 64 W)``."""
        bits = self.words.T[:, :, None] >> np.arange(WORD_BITS, dtype=np.uint64) & np.uint64(1)
        return bits.reshape(self.words.shape[1], self.words.shape[0] * WORD_BITS).astype(np.float64)


def of_words(words: Sequence[NDArray[np.uint64]]) -> Sets:
    """Return sets of their words, ``(M,)`` each."""
    stacked = np.stack(words)
    return Sets(stacked, _count(stacked).astype(np.float64))


def _as_large(size: int, number: int) -> Array:
    """Return the size of so many sets, as one number that takes no memory to read."""
    return np.broadcast_to(np.float64(size), number)


def of_choices(choices: NDArray[Any], num_experts: int) -> Sets:
    """Return the sets of choices ``(M, K)``; -1 = none."""
    words = set_words(choices, num_experts)
    if choices.min(initial=0) >= 0:
        return Sets(np.stack(words), _as_large(choices.shape[1], len(choices)))
    return of_words(words)


def jaccard(reference: Sets, view: Sets) -> Array:
    """Return |S ∩ T| / |S ∪ T| ``(M,)``, token by token; 0 where both are empty."""
    common = _count(reference.words & view.words)
    size, other_size = reference.common_size, view.common_size
    if size is None or other_size is None:
        return common / np.maximum(reference.sizes + view.sizes - common, 1)
    # Sets of one size have few possible indices: a lookup is faster than a division per pair.
    possible = np.arange(min(size, other_size) + 1)
    indices: Array = possible / np.maximum(size + other_size - possible, 1)
    return indices.take(common)


def _count(words: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return how many bits are set ``(M,)`` in all words of each."""
    first, *following = np.bitwise_count(words)
    counts = first.astype(np.uint16)
    for word in following:
        counts += word
    return counts


class SampledChance:
    """The Jaccard index that independent draws with the two sides' own marginals would reach, within strata.

    It is defined as in ``sets.SetChance``; the drawn pairs stand for the similarity of all pairs of a stratum. Under
    weights it is its linear approximation.

    The influences are of the same pairs. What a pair deviates by is in the influences of both images, the
    reference's and the view's. So the sum of their squares has the variance of the draw twice: intervals hold it.

    Args:
        image: ``(M,)`` image of each pair of tokens.
        reference: the reference's sets.
        view: the view's sets.
        strata: of the pairs.
        num_images: n.
    """

    def __init__(
        self, *, image: Integers, reference: Sets, view: Sets, strata: Strata, num_images: int
    ) -> None:
        self._image, self._sides, self._strata = image, (reference, view), strata
        self._num_images = num_images

    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights, to first order."""
        value, influence = self._value_and_influence
        return np.clip(expand_linearly(value, influence, weights), 0.0, 1.0)

    def influence(self) -> Array:
        """Return the derivative of c by each image's weight."""
        return self._value_and_influence[1]

    @cached_property
    def _value_and_influence(self) -> tuple[float, Array]:
        """Return c and the influences.

        c = A / D over strata s: A = Σ share_s agree_s and D = Σ share_s draws_s. ``share`` is trials over pairs,
        ``agree`` the similarity of all pairs as the drawn ones tell it, ``draws`` the pairs that count.
        """
        rng = generator(0, "partners")
        trials = self._shuffle(rng)
        counts = _count_pairs(trials, self._num_images)
        similarity, num_partners = _draw(rng, trials)

        # A drawn pair is in the numbers of both its trials, so a stratum's sum holds it twice.
        num_drawn = trials.sum_by_stratum(num_partners) / 2
        pairs_per_drawn = divide(counts.pairs, num_drawn, empty=0.0)
        agree = pairs_per_drawn * trials.sum_by_stratum(similarity) / 2
        share = np.where(num_drawn > 0, divide(counts.trials, counts.pairs, empty=0.0), 0.0)
        num_draws = (share * counts.draws).sum()
        value = float(divide((share * agree).sum(), num_draws))

        # The influence is the slope of A − c D by an image's weight, divided by D. First what follows from the numbers
        # of trials and pairs: an image counts with all its pairs, as alike as those of its stratum are on average.
        of_share = divide(
            counts.in_slot - share[counts.stratum] * counts.pair_slopes,
            counts.pairs[counts.stratum],
            empty=0.0,
        )
        mean_similarity = divide(agree, counts.pairs, empty=0.0)
        of_slot = of_share * (agree - value * counts.draws)[counts.stratum]
        of_slot += share[counts.stratum] * (
            mean_similarity[counts.stratum] * counts.pair_slopes - value * counts.draw_slopes
        )
        # Then by how much the image's own drawn pairs are more alike than that.
        excess = similarity - mean_similarity[trials.stratum] * num_partners
        of_trial = (share * pairs_per_drawn)[trials.stratum] * excess
        of_image = per_image(of_slot, counts.image, self._num_images)
        of_image += per_image(of_trial, trials.image, self._num_images)
        return value, divide(of_image, num_draws)

    def _shuffle(self, rng: np.random.Generator) -> "_ShuffledTrials":
        """Return the trials stratum by stratum, in a random order within each.

        In the order of the rows every draw would pair tokens of one image, which lie beside each other.
        """
        num_trials = len(self._image)
        _, stratum, size = np.unique(self._strata.number, return_inverse=True, return_counts=True)
        by_size = np.argsort(-size, kind="stable")
        rank = np.empty_like(by_size)
        rank[by_size] = np.arange(len(size))
        shuffled_rank = np.empty(num_trials, dtype=np.int64)
        shuffled_rank[rng.permutation(num_trials)] = np.arange(num_trials)
        stratum = rank[stratum]
        order = np.argsort(stratum * num_trials + shuffled_rank)
        reference, view = (side.take(order) for side in self._sides)
        return _ShuffledTrials(self._image[order], stratum[order], by_size, reference, view)


@dataclass(frozen=True)
class _ShuffledTrials:
    """Trials (pairs of tokens) in the order of their strata, the largest stratum first.

    Attributes:
        image: ``(M,)`` image of each.
        stratum: ``(M,)`` stratum of each, ascending; numbers from 0 to s − 1, all of which occur.
        number: ``(s,)`` the place of each stratum among all, in the order of what they are of.
        reference: the reference's sets.
        view: the view's sets.
    """

    image: Integers
    stratum: Integers
    number: Integers
    reference: Sets
    view: Sets

    @cached_property
    def per_stratum(self) -> Integers:
        """How many trials each stratum has ``(s,)``."""
        return np.bincount(self.stratum)

    def sum_by_stratum(self, values: Array) -> Array:
        """Return the sums ``(s,)`` of values ``(M,)``."""
        return np.bincount(self.stratum, weights=values, minlength=len(self.per_stratum)).astype(np.float64)


@dataclass(frozen=True)
class _PairCounts:
    """How many pairs of trials between images a stratum has, and how much an image adds.

    A *slot* is an image in a stratum; there are only those that occur.

    Attributes:
        stratum: of each slot.
        image: of each slot.
        in_slot: trials of each slot.
        trials: ``(s,)`` trials N of each stratum.
        pairs: ``(s,)`` pairs P of each stratum: N² without the pairs within an image.
        draws: ``(s,)`` the pairs that count: those whose two sets are not both empty.
        pair_slopes: derivative of ``pairs`` by the weight of each slot.
        draw_slopes: derivative of ``draws`` likewise.
    """

    stratum: Integers
    image: Integers
    in_slot: Array
    trials: Array
    pairs: Array
    draws: Array
    pair_slopes: Array
    draw_slopes: Array


def _count_pairs(trials: _ShuffledTrials, num_images: int) -> _PairCounts:
    """Return the pairs of each stratum; they follow from how many trials and empty sets each slot has."""
    slots, slot = np.unique(trials.stratum * num_images + trials.image, return_inverse=True)
    stratum, image = slots // num_images, slots % num_images
    in_slot, empty_reference, empty_view = (
        np.bincount(slot, weights=weights, minlength=len(slots)).astype(np.float64)
        for weights in (None, trials.reference.sizes == 0, trials.view.sizes == 0)
    )

    def by_stratum(values: Array) -> Array:
        return np.bincount(stratum, weights=values, minlength=len(trials.per_stratum)).astype(np.float64)

    in_stratum = trials.per_stratum.astype(np.float64)
    empty_references, empty_views = by_stratum(empty_reference), by_stratum(empty_view)
    pairs = in_stratum**2 - by_stratum(in_slot**2)
    draws = pairs - empty_references * empty_views + by_stratum(empty_reference * empty_view)
    pair_slopes = 2 * in_slot * (in_stratum[stratum] - in_slot)
    draw_slopes = pair_slopes + 2 * empty_reference * empty_view
    draw_slopes -= empty_reference * empty_views[stratum] + empty_view * empty_references[stratum]
    return _PairCounts(stratum, image, in_slot, in_stratum, pairs, draws, pair_slopes, draw_slopes)


def _draw(rng: np.random.Generator, trials: _ShuffledTrials) -> tuple[Array, Array]:
    """Return how alike each trial's tokens and their partners are, summed ``(M,)``, and how many pairs that is."""
    size, num_trials = trials.per_stratum, len(trials.image)
    partners = min(int(size.max(initial=1)) - 1, max(PARTNERS, PAIRS // max(num_trials, 1)))
    steps = np.zeros((partners, len(size)), dtype=np.int32)
    for draw in range(partners):
        # Stratified: the possible steps are cut into equal parts, and one is drawn from each. A step of 0 or of the
        # stratum's size would lead to the token itself.
        drawn_steps = 1 + (draw + rng.random(len(size))[trials.number]) / partners * (size - 1)
        all_steps = np.where(draw + 1 < size, draw + 1, 0)
        steps[draw] = np.where(size - 1 <= partners, all_steps, drawn_steps)
    index, image = np.arange(num_trials), trials.image.astype(np.int32)
    similarity, num_pairs = np.zeros(num_trials), 2.0 * np.minimum(size - 1, partners)[trials.stratum]
    for rows, partner in _meetings(trials.stratum, size, steps):
        agreement = jaccard(trials.reference.take(rows), trials.view.take(partner))
        same_image = np.flatnonzero(image[rows] == image[partner])
        if len(same_image):
            agreement[same_image] = 0
            num_pairs[index[rows][same_image]] -= 1
            num_pairs[index[partner][same_image]] -= 1
        # A token is one token's partner.
        similarity[rows] += agreement
        similarity[partner] += agreement
    return similarity, num_pairs


# Some trials.
_Rows = slice | Integers


def _meetings(stratum: Integers, size: Integers, steps: NDArray[np.int32]) -> Iterator[tuple[_Rows, _Rows]]:
    """Yield trials and their partners: of a large stratum as slices, which take a third of the time.

    Strata come the largest first. No step leads from a token to itself.
    """
    ends = np.cumsum(size)
    for number in np.flatnonzero(size > _LARGE):
        first, end = int(ends[number] - size[number]), int(ends[number])
        for start in range(first, end, _AT_ONCE):
            stop = min(start + _AT_ONCE, end)
            for step in steps[:, number].tolist():
                # Those beyond the end go on at the beginning.
                cut, back = min(max(end - step, start), stop), step - (end - first)
                if start < cut:
                    yield slice(start, cut), slice(start + step, cut + step)
                if cut < stop:
                    yield slice(cut, stop), slice(cut + back, stop + back)
    for start in range(int(size[size > _LARGE].sum()), len(stratum), _AT_ONCE):
        of_rows = stratum[start : start + _AT_ONCE]
        index = np.arange(start, start + len(of_rows))
        width, end_of = size[of_rows], ends[of_rows]
        # Sizes descend: the strata that still have a step to take come first.
        still = np.searchsorted(-width, -1 - np.arange(len(steps)))
        for step, stop in zip(steps[: np.count_nonzero(still)], still.tolist(), strict=False):
            rows = slice(0, stop)
            partner = index[rows] + step[of_rows[rows]]
            partner -= width[rows] * (partner >= end_of[rows])
            yield slice(start, start + stop), partner


def set_chance_within_image(
    *, image: Integers, reference: Sets, view: Sets, tokens: Tokens, num_images: int
) -> tuple[Share, NDArray[np.bool_]]:
    """Return the Jaccard index of a token with *another* token of its image, two empty sets left out.

    The images are weighted by their pairs of tokens, and those without two pairs that have no token in common take no
    part: the second result ``(n,)`` says which do. Long images have their pairs sampled; the draw belongs to the image.

    Args:
        image: ``(M,)`` image number of each pair of tokens, ascending.
        reference: the reference's sets.
        view: the view's.
        tokens: as for ``trials.within_image``.
        num_images: n.
    """
    # The code of an empty set is 0 on either side, that of another one is not the same on both.
    codes = [np.where(side.sizes > 0, code, 0) for code, side in ((1, reference), (2, view))]
    trials_of_sets = Trials(image, same(codes[0], codes[1], size=3), num_images=num_images)
    pairs, left_out = apart(trials_of_sets, tokens)
    agree, num_drawn = _within(image, reference, view, tokens, trials_of_sets.number)
    pairs = np.where(num_drawn > 0, pairs, 0.0)
    agree = divide(agree * pairs, num_drawn, empty=0.0)
    number = trials_of_sets.number.astype(np.float64)
    match, draws = (per_trial(total, pairs, number).numerator for total in (agree, pairs - left_out))
    return Share(match, draws), pairs > 0


def _within(
    image: Integers, reference: Sets, view: Sets, tokens: Tokens, number: Integers
) -> tuple[Array, Array]:
    """Return how alike tokens and their partners of the same image are ``(n,)``, summed, and how many pairs it is."""
    longest = int(number.max(initial=1))
    partners = min(longest - 1, max(_PARTNERS_WITHIN, ALL_WITHIN**2 // longest))
    # What belongs to the image: all of its sets.
    content = np.zeros(len(number), dtype=np.uint64)
    for side in (reference, view):
        np.add.at(content, image, side.words.sum(0, dtype=np.uint64))
    starts = generator(0, "partners within").integers(2**63, size=max(partners, 1), dtype=np.uint64)
    ends = np.cumsum(number)
    agree, num_drawn = np.zeros(len(image)), np.zeros(len(image))
    for start in range(0, len(image), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        index = np.arange(start, min(start + _AT_ONCE, len(image)))
        of_reference, (size, end) = reference.take(rows), (values[image[rows]] for values in (number, ends))
        key = (content[image[rows]] + (end - index).astype(np.uint64)) * SCATTER
        distances, is_long = size - 1, size - 1 > partners
        wide = distances.astype(np.uint64)
        for draw in range(partners):
            steps = 1 + ((key + starts[draw] >> _HALF) * wide >> _HALF).astype(np.int64)
            partner = index + np.where(is_long, steps, np.where(draw < distances, draw + 1, 0))
            partner -= np.where(partner >= end, size, 0)
            similarity = jaccard(of_reference, view.take(partner))
            is_apart = tokens[0][rows] != tokens[0][partner]
            if tokens[1] is not tokens[0]:
                is_apart &= tokens[1][rows] != tokens[1][partner]
            agree[rows] += similarity * is_apart
            num_drawn[rows] += is_apart
    return per_image(agree, image, len(number)), per_image(num_drawn, image, len(number))
