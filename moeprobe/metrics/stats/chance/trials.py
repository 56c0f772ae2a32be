"""Pairs of tokens, image by image, how alike the two tokens of each are, and chance within an image.

What several chance levels need of the same trials is computed once, here. Chance within an image is the similarity of a
patch and another patch of its image. Several patches of one view may correspond to one patch of the other. Two pairs of
patches that share a patch on either side show the same piece of the image, so neither is *another* patch for the other:
they are left out.

Axes: M trials (pairs of tokens), n images.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import Alike, Codes, of_pairs, within
from moeprobe.metrics.stats.statistic import Array, ImageCache, Integers, Share

# How often the reference and the view have each code, by image ``(n, codes)``.
Histograms = tuple[Array, Array]
# Places of histograms per code that is counted, up to which they are quicker than sorted codes.
_DENSER = 2


class Trials:
    """The trials of n images.

    Args:
        image: ``(M,)`` image of each, ascending.
        similarity: the criterion by which a trial's two tokens agree.
        num_images: n.
        cache: where numbers of each image are kept.
    """

    def __init__(
        self, image: Integers, similarity: Alike, *, num_images: int, cache: ImageCache | None = None
    ) -> None:
        self.image, self.alike, self.num_images = image, similarity, num_images
        self.cache = ImageCache() if cache is None else cache

    @cached_property
    def number(self) -> Integers:
        """How many each image has ``(n,)``."""
        # Images ascend: to count them one by one would wait for each sum.
        return np.diff(np.searchsorted(self.image, np.arange(self.num_images + 1)))

    @cached_property
    def hits(self) -> Array:
        """How alike the two tokens of each are ``(M,)``."""
        return of_pairs(self.alike)

    @property
    def hits_of_image(self) -> Array:
        """The same, summed over an image ``(n,)``."""
        return self.cache.once("hits", lambda: self.by_image(self.hits))

    @property
    def within(self) -> Array:
        """How alike all references and all views of an image are ``(n,)``, each with each, itself too."""
        return self.cache.once("within", self._sum_within)

    def _sum_within(self) -> Array:
        sums = np.zeros(self.num_images)
        for codes, histograms in zip(self.alike, self.histograms, strict=True):
            if histograms is None:
                sums += within([codes], self.image, self.num_images)
            else:
                sums += codes.weight * np.einsum("nc,nc->n", *histograms)
        return sums

    @cached_property
    def histograms(self) -> "list[Histograms | None]":
        """How often either side has each code in an image ``(n, codes)``; None where most would be 0."""
        return [
            _histograms(codes, self.image, self.num_images)
            if codes.size * self.num_images < _DENSER * codes.reference.size
            else None
            for codes in self.alike
        ]

    def by_image(self, values: Array) -> Array:
        """Return the sums of values ``(M,)`` over the trials of each image ``(n,)``."""
        present, start = self._starts
        sums = np.zeros(self.num_images)
        if len(start):
            sums[present] = np.add.reduceat(values, start)
        return sums

    @cached_property
    def _starts(self) -> tuple[Integers, Integers]:
        """Which images have trials, and where these begin."""
        present = np.flatnonzero(self.number)
        return present, (np.cumsum(self.number) - self.number)[present]


def _histograms(codes: Codes, image: Integers, num_images: int) -> Histograms:
    size = codes.size
    first = image[:, None] * size
    reference, view = (
        np.bincount((first + side).ravel(), minlength=num_images * size)
        .reshape(num_images, size)
        .astype(np.float64)
        for side in (codes.reference, codes.view)
    )
    return reference, view


# The token of the reference and the token of the view of each trial, as numbers (M,).
Tokens = tuple[Integers, Integers]


def within_image(trials: Trials, tokens: Tokens) -> Share:
    """Return how alike a trial is with another one of its image: what routing by image alone would reach.

    For image i with T_i trials, c_i is the mean over its pairs of trials without a token in common; the images are
    weighted by T_i, as in the match. Images without such a pair take no part. ``tokens``: which the trials are of.

    One image, whose three tokens go from 0, 0, 1 to 0, 1, 1. The reference of one and the view of another are alike in
    2 of 6 pairs:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.alike import same
    >>> from moeprobe.metrics.stats.chance.trials import Trials, within_image
    >>> trials = Trials(np.zeros(3, int), same(np.array([0, 0, 1]), np.array([0, 1, 1]), size=2), num_images=1)
    >>> round(within_image(trials, (np.arange(3), np.arange(3))).value(), 3)
    0.333
    """
    pairs, total = apart(trials, tokens)
    return per_trial(total, pairs, trials.number.astype(np.float64))


def apart(trials: Trials, tokens: Tokens) -> tuple[Array, Array]:
    """Return the pairs of trials of an image without a token in common ``(n,)``, and how alike they are, summed."""
    reference, view = tokens
    number = trials.number.astype(np.float64)
    pairs, total = number**2, trials.within
    if reference is view:
        # Nothing moved: a trial has a token in common with itself alone.
        return pairs - number, total - trials.hits_of_image
    for sign, rows in ((-1, (reference,)), (-1, (view,)), (1, (reference, view))):
        shared, agree = _in_common((trials.image, *rows), trials)
        pairs = pairs + sign * trials.by_image(shared)
        total = total + sign * trials.by_image(agree)
    return pairs, total


def _in_common(rows: tuple[Integers, ...], trials: Trials) -> tuple[Array, Array]:
    """Return for each trial ``(M,)`` its part of the pairs of trials with the same ``rows``, and of how alike they are.

    All of a group's is with its first trial.
    """
    key = _key(rows)
    _, first, group, size = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    number, agree = np.zeros(len(key)), np.zeros(len(key))
    number[first] = size.astype(np.float64) ** 2
    alone = size[group] == 1
    agree[alone] = trials.hits[alone]
    several = np.flatnonzero(~alone)
    if len(several):
        order = several[np.argsort(group[several], kind="stable")]
        _, start, renumbered = np.unique(group[order], return_index=True, return_inverse=True)
        in_groups = within([codes.take(order) for codes in trials.alike], renumbered, len(start))
        np.add.at(agree, order[start], in_groups)
    return number, agree


def _key(rows: tuple[Integers, ...]) -> Integers:
    """Return a number per row of numbers from 0 up ``(M,)``, the same where the rows are the same."""
    key = np.zeros(len(rows[0]), dtype=np.int64)
    for column in rows:
        key = key * (int(column.max(initial=0)) + 1) + column
    return key


def per_image(values: NDArray[np.generic], image: Integers, num_images: int) -> NDArray[np.float64]:
    """Return the sum of the trials' values ``(M,)`` in each image ``(n,)``."""
    return np.bincount(image, weights=values, minlength=num_images).astype(np.float64)


def per_trial(total: NDArray[np.float64], pairs: NDArray[np.float64], trials: NDArray[np.float64]) -> Share:
    """Return the mean of images' totals over their pairs of trials, each image weighted by its trials; all ``(n,)``."""
    has_pairs = pairs > 0
    return Share(
        np.where(has_pairs, total * trials / np.where(has_pairs, pairs, 1), 0.0),
        np.where(has_pairs, trials, 0.0),
    )
