"""The match that chance alone would reach.

Axes: R resamples, n images, M trials, F codes of a token.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import Codes, within
from moeprobe.metrics.stats.chance_resampled import ResampledChance
from moeprobe.metrics.stats.chance_totals import ChanceTotals
from moeprobe.metrics.stats.counts import Counts, count
from moeprobe.metrics.stats.remembered import remembered
from moeprobe.metrics.stats.statistic import Array, divide, expanded
from moeprobe.metrics.stats.strata import Strata, are_thin
from moeprobe.metrics.stats.trials import Trials

Whole = NDArray[np.int64]


class Chance:
    """How alike independent draws with the two sides' own marginals would be, within strata.

    c = Σ_s (N_s / N) Σ_{a, b} p_A(a | s) p_B(b | s) alike(a, b), with N_s the trials in stratum s; where alike is being
    the same, that is Σ_code p_A(code | s) p_B(code | s). One stratum gives the pooled null; the patch position as
    stratum gives the position null, the class of the image the class null.

    It is estimated from pairs of two images, i ≠ j: the plain product of the two marginals pairs an image with itself
    too, which makes it too high by about (m − c) / n, and by twice that in a resample, where images have copies.

    Where strata are of few images each, as those of rare tokens, many resamples have no two images of a stratum: theirs
    would be the chance level of other trials. There the value under weights is its linear approximation.

    Args:
        trials: pairs of tokens.
        strata: of the trials.
    """

    def __init__(self, trials: Trials, strata: Strata) -> None:
        self.trials, self.strata = trials, strata
        self._like: Chance | None = None

    def share(self, other: "Chance") -> None:
        """Take the values under resamples from another chance level, of which this one ``is_like``."""
        self._like = other

    def is_like(self, other: "Chance") -> bool:
        """Whether both are of the same trials and strata, and of codes that differ by nothing but a constant."""
        one, two = self.trials, other.trials
        return (
            self.strata.size == other.strata.size
            and len(one.alike) == len(two.alike)
            and one.num_images == two.num_images
            and np.array_equal(one.image, two.image)
            and np.array_equal(self.strata.number, other.strata.number)
            and all(left.is_like(right) for left, right in zip(one.alike, two.alike, strict=True))
        )

    @remembered
    def evaluate(self, weights: Array) -> Array:
        """Return c under each set of weights."""
        if self._like is not None:
            return self._like.evaluate(weights)
        if self._is_thin:
            return np.clip(expanded(self.value(), self.influence(), weights), 0.0, 1.0)
        return self._resampled.evaluate(weights)

    @cached_property
    def _is_thin(self) -> bool:
        if self.strata.size == 1:
            return False
        _, stratum, trials, _ = self._slots
        return are_thin(stratum, trials, size=self.strata.size, num_images=self.trials.num_images)

    def totals(self) -> ChanceTotals:
        """Return the counts that add up."""
        return self._totals

    def value(self, totals: ChanceTotals | None = None) -> float:
        """Return c."""
        return (self._totals if totals is None else totals).value

    def influence(self, totals: ChanceTotals | None = None) -> Array:
        """Return the derivative of c by each image's weight."""
        totals = self._totals if totals is None else totals
        of_trial, of_own_pair, of_codes = totals.slopes
        trials, stratum = self.trials, self.strata.number
        if self.strata.single:
            # The only pair of a trial with one of its own image and stratum is that with itself.
            of_trial = of_trial + 2 * of_own_pair
        of_each = totals.trials.at(stratum, of_trial)
        for codes, (_, size, *sides), slopes in zip(trials.alike, totals.codes, of_codes, strict=True):
            for keys, side, slope in zip(self._keys(codes, size), sides, slopes, strict=True):
                of_each += _summed(side.at(keys, slope))
        if self.strata.single:
            of_each -= 2 * totals.trials.at(stratum, totals.draws.share) * trials.hits
            return divide(trials.by_image(of_each), totals.draws.used)
        image, stratum, number, hits = self._slots
        own = (
            totals.trials.at(stratum, of_own_pair) * number**2
            - totals.trials.at(stratum, totals.draws.share) * hits
        )
        of_image = np.bincount(image, weights=own, minlength=trials.num_images)
        return divide(trials.by_image(of_each) + 2 * of_image, totals.draws.used)

    def counted(self, totals: ChanceTotals | None = None) -> Whole:
        """Return each image's trials ``(n,)`` that have a chance level: elsewhere no other image is in the stratum."""
        rows = self.has_others(totals)
        if rows is None:
            return self.trials.number
        return np.bincount(self.trials.image[rows], minlength=self.trials.num_images)

    def has_others(self, totals: ChanceTotals | None = None) -> NDArray[np.bool_] | None:
        """Return which trials ``(M,)`` have another image in their stratum; None = all."""
        totals = self._totals if totals is None else totals
        if (totals.draws.share > 0).all():
            return None
        return totals.trials.at(self.strata.number, totals.draws.share) > 0

    @cached_property
    def _totals(self) -> ChanceTotals:
        _, stratum, trials, hits = self._slots
        size = self.strata.size
        return ChanceTotals(
            count(stratum, size, trials),
            count(stratum, size, trials**2),
            count(stratum, size, hits),
            tuple(self._count(codes) for codes in self.trials.alike),
        )

    def _count(self, codes: Codes) -> tuple[float, int, Counts, Counts]:
        """Return weight, number of codes, and how often either side has each code in each stratum."""
        reference, view = (
            count(keys.ravel(), self.strata.size * codes.size) for keys in self._keys(codes, codes.size)
        )
        return codes.weight, codes.size, reference, view

    @cached_property
    def _slots(self) -> tuple[Whole, Whole, Array, Array]:
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

    def _keys(self, codes: Codes, size: int) -> tuple[Whole, Whole]:
        """Return the (stratum, code) cells ``(M, F)`` of either side."""
        if self.strata.size == 1:
            return codes.reference, codes.view
        first = self.strata.number[:, None] * size
        return first + codes.reference, first + codes.view

    @cached_property
    def _resampled(self) -> ResampledChance:
        trials = self.trials
        return ResampledChance(
            image=trials.image,
            alike=trials.alike,
            stratum=self.strata.number,
            num_images=trials.num_images,
        )


def share_equal(statistics: Iterable[object]) -> None:
    """Let chance levels that are equal be resampled once: where tokens have one expert, that of sets is that of it."""
    different: list[Chance] = []
    for one in statistics:
        if isinstance(one, Chance):
            like = next((other for other in different if one.is_like(other)), None)
            if like is None:
                different.append(one)
            else:
                one.share(like)


def _summed(values: Array) -> Array:
    """Return the sums of rows ``(M, F)``; of a single column it is that."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)
