"""The match that chance alone would reach.

Axes: R resamples, n images, M trials, F codes of a token.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.alike import Codes, within
from moeprobe.metrics.stats.arrays import Array, Integers, remembered
from moeprobe.metrics.stats.chance.resampled import ResampledChance
from moeprobe.metrics.stats.chance.totals import ChanceTotals
from moeprobe.metrics.stats.chance.trials import Counts, Strata, Trials, are_thin, count
from moeprobe.metrics.stats.statistic import Share, divide, expanded


class Chance:
    """How alike independent draws with the two sides' own marginals would be, within strata.

    c = Σ_s (N_s / N) Σ_{a, b} p_A(a | s) p_B(b | s) alike(a, b), with N_s the trials in stratum s; where alike is being
    the same, that is Σ_code p_A(code | s) p_B(code | s). One stratum gives the pooled null; the patch position as
    stratum gives the position null, the class of the image the class null.

    It is estimated from pairs of two images, i ≠ j: the plain product of the two marginals pairs an image with itself
    too, which makes it too high by about (m − c) / n, and by twice that in a resample, where images have copies.

    Where strata hold few images each, as for rare tokens, many resamples have no two images of a stratum: they
    would give the chance level of other trials. There the value under weights is its linear approximation.

    Args:
        trials: pairs of tokens.
        strata: of the trials.
    """

    def __init__(self, trials: Trials, strata: Strata) -> None:
        self.trials, self.strata = trials, strata
        self._like: Chance | None = None

    def share(self, equal: "Chance") -> None:
        """Take the values under resamples from another chance level, of which this one ``is_like``."""
        self._like = equal

    def is_like(self, other: "Chance") -> bool:
        """Whether both are of the same trials and strata, and of codes that differ by nothing but a constant."""
        trials, other_trials = self.trials, other.trials
        return (
            self.strata.size == other.strata.size
            and len(trials.alike) == len(other_trials.alike)
            and trials.num_images == other_trials.num_images
            and np.array_equal(trials.image, other_trials.image)
            and np.array_equal(self.strata.number, other.strata.number)
            and all(
                codes.is_like(equal) for codes, equal in zip(trials.alike, other_trials.alike, strict=True)
            )
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
            return divide(trials.by_image(of_each), totals.draws.num_trials)
        image, stratum, number, hits = self._slots
        pairs_of_slot = (
            totals.trials.at(stratum, of_own_pair) * number**2
            - totals.trials.at(stratum, totals.draws.share) * hits
        )
        of_image = np.bincount(image, weights=pairs_of_slot, minlength=trials.num_images)
        return divide(trials.by_image(of_each) + 2 * of_image, totals.draws.num_trials)

    def counted_trials(self, totals: ChanceTotals | None = None) -> Integers:
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
    def _slots(self) -> tuple[Integers, Integers, Array, Array]:
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

    def _keys(self, codes: Codes, size: int) -> tuple[Integers, Integers]:
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
            similarity=trials.alike,
            stratum=self.strata.number,
            num_images=trials.num_images,
        )


def share_equal(statistics: Iterable[object]) -> None:
    """Resample equal chance levels once: with one expert per token, the set's level equals the first choice's."""
    different: list[Chance] = []
    for statistic in statistics:
        if isinstance(statistic, Chance):
            like = next((equal for equal in different if statistic.is_like(equal)), None)
            if like is None:
                different.append(statistic)
            else:
                statistic.share(like)


def _summed(values: Array) -> Array:
    """Return the sums of rows ``(M, F)``; of a single column it is that."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)


# The match that a chance level is compared with: over the same trials.
#
# Axes: n images.


class Matched:
    """How alike the two sides' tokens are, over the trials that have a chance level.

    Args:
        chance: that level.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def evaluate(self, weights: Array) -> Array:
        """Return the mean under each set of weights."""
        return self._share.evaluate(weights)

    def totals(self) -> tuple[ChanceTotals, Counts]:
        """Return the counts of chance, and how alike the tokens are by stratum."""
        chance = self._chance
        return chance.totals(), count(chance.strata.number, chance.strata.size, chance.trials.hits)

    def value(self, totals: tuple[ChanceTotals, Counts] | None = None) -> float:
        """Return the mean."""
        counts, hits = self.totals() if totals is None else totals
        return float(divide(hits.values[counts.draws.share > 0].sum(), counts.draws.num_trials))

    def influence(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Array:
        """Return (own sum − value · own trials) / trials, for each image."""
        totals = self.totals() if totals is None else totals
        share = self._of(totals[0])
        return divide(share.numerator - self.value(totals) * share.denominator, totals[0].draws.num_trials)

    def counted_trials(self, totals: tuple[ChanceTotals, Counts] | None = None) -> Integers:
        """Return the trials of each image ``(n,)``."""
        return self._chance.counted_trials(None if totals is None else totals[0])

    def bounds(
        self, totals: tuple[ChanceTotals, Counts] | None, error: float, images: int
    ) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        return self._share.bounds(np.array([self.value(totals), 1.0]), error, images)

    def swing(self, totals: object) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Whether every image matches or does not as a whole."""
        return self._share.is_binary()

    @cached_property
    def _share(self) -> Share:
        return self._of(None)

    def _of(self, totals: ChanceTotals | None) -> Share:
        trials, rows = self._chance.trials, self._chance.has_others(totals)
        if rows is None:
            return Share(trials.hits_of_image, trials.number.astype(np.float64))
        hits, number = (
            np.bincount(trials.image[rows], weights=weights, minlength=trials.num_images)
            for weights in (trials.hits[rows], None)
        )
        return Share(hits.astype(np.float64), number.astype(np.float64))
