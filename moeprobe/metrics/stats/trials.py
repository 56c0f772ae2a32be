"""Pairs of tokens, image by image, and how alike the two tokens of each are.

What several chance levels need of the same trials is computed once, here. Axes: M trials, n images.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import Alike, of_pairs, within
from moeprobe.metrics.stats.statistic import Array

Whole = NDArray[np.int64]


class Trials:
    """The trials of n images.

    Args:
        image: ``(M,)`` image of each, ascending.
        alike: what makes the reference's token and the view's of a trial alike.
        num_images: n.
    """

    def __init__(self, image: Whole, alike: Alike, *, num_images: int) -> None:
        self.image, self.alike, self.num_images = image, alike, num_images

    @cached_property
    def number(self) -> Whole:
        """How many each image has ``(n,)``."""
        return np.bincount(self.image, minlength=self.num_images)

    @cached_property
    def hits(self) -> Array:
        """How alike the two tokens of each are ``(M,)``."""
        return of_pairs(self.alike)

    @cached_property
    def hits_of_image(self) -> Array:
        """The same, summed over an image ``(n,)``."""
        return self.by_image(self.hits)

    @cached_property
    def within(self) -> Array:
        """How alike all references and all views of an image are ``(n,)``, each with each, itself too."""
        return within(self.alike, self.image, self.num_images)

    def by_image(self, values: Array) -> Array:
        """Return the sums of values ``(M,)`` over the trials of each image ``(n,)``."""
        present, start = self._starts
        sums = np.zeros(self.num_images)
        if len(start):
            sums[present] = np.add.reduceat(values, start)
        return sums

    @cached_property
    def _starts(self) -> tuple[Whole, Whole]:
        """Which images have trials, and where these begin."""
        present = np.flatnonzero(self.number)
        return present, (np.cumsum(self.number) - self.number)[present]
