"""Chance within an image: the similarity of a patch and another patch of its image.

Several patches of one view may correspond to one patch of the other. Two pairs of patches that share a patch on either
side show the same piece of the image, so neither is *another* patch for the other: they are left out.

Axes: M trials (pairs of tokens), n images.
"""

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import within
from moeprobe.metrics.stats.arrays import Array, Integers
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.statistic import Share

# Of each trial the token of the reference and that of the view, as numbers (M,).
Tokens = tuple[Integers, Integers]


def within_image(trials: Trials, tokens: Tokens) -> Share:
    """Return how alike a trial is with another one of its image: what routing by image alone would reach.

    For image i with T_i trials, c_i is the mean over its pairs of trials without a token in common; the images are
    weighted by T_i, as in the match. Images without such a pair take no part. ``tokens``: which the trials are of.
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
