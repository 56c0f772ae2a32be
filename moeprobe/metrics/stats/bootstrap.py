"""From sums per image to values with intervals.

The image is the sampling unit: patches of one image are not independent, and an interval that treats them as
independent covers the truth in about half of the cases that it claims. A resample draws whole images with replacement
(or whole units of images, see ``units``); it is written as a weight per image, so that any statistic of sums becomes a
product ``sums @ weights`` and all resamples run at once. The weights belong to (seed, resample), not to a checkpoint:
differences between checkpoints are therefore paired.

Axes: R resamples, n images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.carriers import MIN_CARRIERS, Tail
from moeprobe.metrics.stats.statistic import (
    Array,
    Share,
    Statistic,
    Totals,
    flag_of,
    is_bounded,
    is_carried,
    standard_error,
)
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.metrics.stats.units import Units
from moeprobe.runtime.seeds import generator

# Below this many images an interval over images says little: points only.
MIN_IMAGES = 20
# A larger share of resamples without a value than this: no interval.
MAX_UNDEFINED = 0.01
# A difference of two values that is smaller, relative to them, is their rounding.
_LAST_BITS = 2.0**-48
# The flag of a mean of losses that too few images carry.
FEW_CARRIERS = "few_carriers"
# How an interval was computed: of a share, of resamples, or of the images' influences.
SCORE, PERCENTILE, LINEARIZED = "score", "percentile", "linearized"
# The mark of a mean over images and perturbations, both as samples.
CROSSED = "crossed"


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; NaN where there is none. ``flag`` says why, ``method`` how it was computed.

    collapsed: chance is 1, so κ does not exist; no_mismatch: a share of mere rounding; no_cost: flips cost nothing, or
    have no price; no_stakes: no choice moves the loss; no_trials: there was nothing to count; not_measurable: the
    interval would say nothing; few_images: under 20; maximum, level, fitted: there is none by its nature;
    few_carriers: a mean of losses of which fewer than 10 images carry half, ``carriers`` of them;
    unstable: over 1 % of the resamples are undefined, or the standard error is.
    """

    value: float
    low: float
    high: float
    flag: str = ""
    method: str = ""
    carriers: int | None = None


@dataclass(frozen=True)
class Replicates:
    """A statistic of all images, and of each resample ``(R,)`` (none where there are too few images).

    Attributes:
        point: its value over all images.
        values: its values in the resamples; of many images, those that multipliers of the influences give, or none.
        images: number of images with at least one trial.
        trials: the statistic's denominator over all images.
        bounds: interval of a share, or of a value that follows from one; None = use the resamples.
        swing: by how much a share of one would move it, or the largest contrast in an image; 0 where it follows from
            no share.
        grain: by how much one image moves it where an image is a single trial, right or wrong; else 0.
        error: its standard error over images where its interval is linearized; None where resamples make it.
        influence: of each image on the value, ``(n,)`` in the order of their names, where it is linearized and kept.
        undefined: the flag where it has trials and no value.
        method: how the bounds are computed.
        no_interval: the flag of a value that never has an interval; empty = it has one.
        effect: design effect of a share that varies: its variance over images divided by the variance of independent
            trials; else NaN.
        contributions: what each image adds to a mean of losses ``(n,)``, in the order of ``influence``, where kept.
        carriers: images that carry half of such a mean, see ``carriers.Tail``; None for anything else.
        crossed: values of each perturbation and image ``(P, n)`` of a mean over both, see ``two_way.TwoWay``; None for
            anything else.
    """

    point: float
    values: Array
    images: int
    trials: int
    bounds: tuple[float, float] | None = None
    swing: float = 0.0
    grain: float = 0.0
    error: float | None = None
    influence: Array | None = None
    undefined: str = "collapsed"
    method: str = SCORE
    no_interval: str = ""
    effect: float = np.nan
    contributions: Array | None = None
    carriers: int | None = None
    crossed: Array | None = None

    def minus(self, subtracted: "Replicates") -> "Replicates":
        """Return the difference; paired, because both saw the same resamples of the same images."""
        # Values with too few images have no resamples; then neither has the difference.
        length = min(len(self.values), len(subtracted.values))
        images, error, influence = min(self.images, subtracted.images), None, None
        point = self.point - subtracted.point
        if self.influence is not None and subtracted.influence is not None:
            influence = self.influence - subtracted.influence
            # The influence of a difference is the difference of influences: this keeps the pairing.
            error = standard_error(influence, images)
            # The order in which blocks are added up shows in the last bits of either value.
            if abs(point) <= _LAST_BITS * max(abs(self.point), abs(subtracted.point)):
                point = 0.0
        difference = Replicates(
            point=point,
            values=self.values[:length] - subtracted.values[:length],
            images=images,
            trials=min(self.trials, subtracted.trials),
            swing=max(self.swing, subtracted.swing),
            grain=max(self.grain, subtracted.grain),
            error=error,
            influence=influence,
            undefined=self.undefined,
            no_interval=self.no_interval,
        )
        if self.crossed is not None and subtracted.crossed is not None:
            return with_crossed(difference, self.crossed - subtracted.crossed)
        if self.contributions is None or subtracted.contributions is None:
            return difference
        return with_contributions(difference, self.contributions - subtracted.contributions)

    def over(self, denominator: "Replicates") -> "Replicates":
        """Return the ratio; paired, as differences are. Where the denominator is 0 there is no trial."""
        # A ratio with nothing below it is no number, and must not pass for a large one.
        if denominator.point == 0:
            return replace(self, point=np.nan, values=np.empty(0), trials=0, bounds=None)
        length = min(len(self.values), len(denominator.values))
        divisors = denominator.values[:length]
        ratio, influence = self.point / denominator.point, None
        images = min(self.images, denominator.images)
        if self.influence is not None and denominator.influence is not None:
            # The derivative of a / b by an image's weight: (a' − (a / b) b') / b.
            influence = (self.influence - ratio * denominator.influence) / denominator.point
        quotient = Replicates(
            point=ratio,
            values=self.values[:length] / np.where(divisors == 0, np.nan, divisors),
            images=images,
            trials=min(self.trials, denominator.trials),
            swing=max(self.swing, denominator.swing) / denominator.point,
            grain=max(self.grain, denominator.grain) / denominator.point,
            error=None if influence is None else standard_error(influence, images),
            influence=influence,
            undefined=self.undefined,
        )
        if self.contributions is None or denominator.contributions is None:
            return quotient
        # As influences are: an image weighs by its part and by its whole.
        return with_contributions(
            quotient, (self.contributions - ratio * denominator.contributions) / denominator.point
        )

    def complement(self) -> "Replicates":
        """Return 1 minus the value."""
        influence = None if self.influence is None else -self.influence
        return replace(self, point=1 - self.point, values=1 - self.values, influence=influence, bounds=None)

    def interval(self) -> Estimate:
        """Return the 95 % interval; none where over 1 % of the resamples are undefined.

        Of a share it is Wilson's; of anything else, and of differences, the percentiles of the resamples, further out
        for few images. A difference of shares that are the same in every image may still not be 0: as many images could
        have missed the ``proportions.unseen`` share in which they differ. Where an image is right or wrong, so that a
        few images may be all that differ, it is at least t standard errors of one image more to either side. Where
        there are no resamples since there are many images, t standard errors take the place of the percentiles.
        """
        flag = self.no_interval
        if np.isnan(self.point):
            flag = self.undefined if self.trials else "no_trials"
        if flag:
            return self._without(flag)
        # An error means linearized: there are no resamples to take percentiles from.
        if self.error is None:
            return self._of_resamples()
        if flag := "few_images" if self.images < MIN_IMAGES else FEW_CARRIERS * self.has_few_carriers:
            return self._without(flag)
        if self.bounds is not None:
            return Estimate(self.point, *self.bounds, method=self.method)
        if np.isnan(self.error):
            return self._without("unstable")
        reach = proportions.critical(self.images) * np.hypot(self.error, self.grain)
        # No image shows a difference, so its standard error of 0 would claim certainty.
        if self.point == 0 and self.error == 0:
            reach = self.unseen_difference(proportions.critical(self.images))
        return Estimate(self.point, float(self.point - reach), float(self.point + reach), method=LINEARIZED)

    @property
    def has_few_carriers(self) -> bool:
        """Whether it is a mean of losses that too few images carry."""
        return self.carriers is not None and self.carriers < MIN_CARRIERS

    def _without(self, flag: str) -> Estimate:
        return Estimate(
            self.point, np.nan, np.nan, flag, carriers=self.carriers if flag == FEW_CARRIERS else None
        )

    def _of_resamples(self) -> Estimate:
        if len(self.values) == 0 and self.bounds is None:
            return self._without("few_images")
        if self.has_few_carriers:
            return self._without(FEW_CARRIERS)
        # A resample may hold no trial at all; its value is undefined.
        defined = self.values[~np.isnan(self.values)]
        if len(defined) < (1 - MAX_UNDEFINED) * len(self.values):
            return self._without("unstable")
        if self.bounds is not None:
            return Estimate(self.point, *self.bounds, method=self.method)
        if self.point == 0 and not defined.any():
            reach = self.unseen_difference(proportions.critical(self.images))
            return Estimate(self.point, 0.0 - reach, reach, method=PERCENTILE)
        # Further out than 2.5 %: percentiles of few images are too narrow.
        beyond = proportions.tail(self.images)
        low, high = np.quantile(defined, [beyond, 1 - beyond])
        if self.grain:
            error = np.hypot(defined.std() / np.sqrt(1 - 1 / self.images), self.grain)
            reach = proportions.critical(self.images) * error
            low, high = min(low, self.point - reach), max(high, self.point + reach)
        # A value is never outside its interval, however skewed the resamples are.
        low, high = min(float(low), self.point), max(float(high), self.point)
        return Estimate(self.point, low, high, method=PERCENTILE)

    def unseen_difference(self, critical_value: float) -> float:
        """Return how large a difference could be that showed in no image."""
        return self.swing * proportions.unseen(self.images, critical_value)


def average(members: Sequence[Replicates]) -> Replicates:
    """Return the mean of values of the same images; its interval is paired, as a difference's is.

    A mean of shares of images is such a share, with a score interval. Where one has no value, neither has the mean.
    """
    if len(members) == 1:
        return members[0]
    length = min(len(member.values) for member in members)
    images = min(member.images for member in members)
    influences = [member.influence for member in members if member.influence is not None]
    influence = np.mean(influences, axis=0) if len(influences) == len(members) else None
    mean = Replicates(
        point=float(np.mean([member.point for member in members])),
        values=np.mean([member.values[:length] for member in members], axis=0),
        images=images,
        trials=sum(member.trials for member in members),
        swing=max(member.swing for member in members),
        error=None if influence is None else standard_error(influence, images),
        influence=influence,
        undefined=next((m.undefined for m in members if np.isnan(m.point)), members[0].undefined),
    )
    contributions = [member.contributions for member in members if member.contributions is not None]
    if len(contributions) == len(members):
        mean = with_contributions(mean, np.mean(contributions, axis=0))
    # Only a mean of shares stays between 0 and 1, as a score interval assumes.
    if np.isnan(mean.point) or any(not _is_share(member) for member in members):
        return mean
    error = mean.error
    if error is None:
        # Resamples vary less than samples do, by the root of 1 − 1 / n; undone here.
        error = float(mean.values.std() / np.sqrt(1 - 1 / images))
    return replace(mean, bounds=proportions.score_interval(mean.point, error, images))


def with_contributions(replicates: Replicates, contributions: Array) -> Replicates:
    """Return a mean of losses with what its images add to it ``(n,)``, and how many of them carry it."""
    carriers = Tail.of(contributions).carriers(replicates.images)
    return replace(replicates, contributions=contributions, carriers=carriers)


def with_crossed(replicates: Replicates, crossed: Array) -> Replicates:
    """Return a mean whose interval is over perturbations and images; ``crossed`` ``(P, n)`` are its values."""
    return replace(replicates, bounds=TwoWay.of(crossed).ends(), method=CROSSED, crossed=crossed)


def _is_share(number: Replicates) -> bool:
    return number.bounds is not None and number.method == SCORE and number.swing == 1


def with_bounds(
    replicates: Replicates, statistic: Statistic, *, totals: Totals | None, error: float, binary: bool
) -> Replicates:
    """Return a value with what its interval knows of shares, where it follows from any and there is an interval.

    A value whose interval is wider than the statistic's ``widest`` says is not known.

    Args:
        replicates: the value.
        statistic: what it is of.
        totals: of all images; None = the statistic's own are all there are.
        error: its standard error over images.
        binary: whether every image is right or wrong as a whole.
    """
    if no_interval := getattr(statistic, "no_interval", ""):
        replicates = replace(replicates, no_interval=no_interval)
    if not is_bounded(statistic) or np.isnan(replicates.point) or replicates.images < MIN_IMAGES:
        return replicates
    swing, bounds = statistic.swing(totals), statistic.bounds(totals, error, replicates.images)
    widest = getattr(statistic, "widest", None)
    if bounds is not None and widest is not None and bounds[1] - bounds[0] > widest(totals):
        return replace(replicates, point=np.nan)
    return replace(
        replicates,
        bounds=bounds,
        method=getattr(statistic, "method", SCORE),
        swing=swing,
        grain=swing / replicates.images if binary else 0.0,
        effect=_effect(replicates, statistic, error),
    )


def with_observations(replicates: Replicates, effect: float) -> Replicates:
    """Return a share of nothing, or of everything, with an interval by its trials over a design effect.

    The number of images bounds the distance of such a share from the observed one; so do its trials, where other
    cells say how much the trials of an image vary together. Never fewer observations than images, nor more than trials.
    """
    if replicates.bounds is None:
        return replicates
    low, high = replicates.bounds
    observations = max(replicates.trials / max(effect, 1.0), replicates.images)
    t = proportions.critical(replicates.images)
    missed = replicates.swing * proportions.unseen(observations, t)
    # One end is the value itself: that of 0, or of 1.
    if replicates.point == low:
        high = min(high, low + missed)
    elif replicates.point == high:
        low = max(low, high - missed)
    return replicates if (low, high) == replicates.bounds else replace(replicates, bounds=(low, high))


def _effect(replicates: Replicates, statistic: Statistic, error: float) -> float:
    """Return the design effect of a share between 0 and 1."""
    if not isinstance(statistic, Share) or not error > 0:
        return np.nan
    # The variance that the trials would have if they were independent.
    independent = replicates.point * (1 - replicates.point) / replicates.trials
    return error**2 / independent if independent > 0 else np.nan


NUM_RESAMPLES = 2000
# Image weights held at a time.
WEIGHTS_AT_ONCE = 2**24
# Up to this many are drawn once a process: to draw them takes longer than to evaluate most statistics.
_SHARED_WEIGHTS = 2**20


class Bootstrap:
    """Resamples of ``num_images`` images, the same for every statistic and every checkpoint.

    ``units``: what a resample draws whole; None = images.
    """

    def __init__(
        self, num_images: int, *, seed: int, num_resamples: int = NUM_RESAMPLES, units: Units | None = None
    ) -> None:
        self._num_images = num_images
        self._units = Units(None, num_images) if units is None else units
        self._seed = seed
        # Below the minimum no interval is shown, so nothing is drawn.
        self._num_resamples = num_resamples if self._units.num_units >= MIN_IMAGES else 0
        self._rows = max(1, WEIGHTS_AT_ONCE // max(num_images, 1))
        self._kept: Array | None = None

    def replicate(
        self, statistics: Sequence[tuple[Statistic, NDArray[np.generic]]], *, paired: bool = True
    ) -> list[Replicates]:
        """Evaluate statistics, each with its trials per image ``(n,)``, on all images and on each resample.

        A statistic with trials in fewer than 20 units gets its point only. Without ``paired``, that is where no
        difference follows, shares are not resampled: their intervals do not need it.
        """
        everything, units = np.ones((self._num_images, 1)), self._units
        results = []
        for statistic, trials in statistics:
            images, point = units.count(trials), float(statistic.evaluate(everything)[0])
            num_resamples = self._num_resamples if images >= MIN_IMAGES else 0
            has_bounds = num_resamples > 0 and not np.isnan(point)
            # Its score interval needs only the standard error; without differences, nothing reads the resamples.
            if (
                has_bounds
                and isinstance(statistic, Share)
                and not paired
                and self._is_always_defined(statistic)
            ):
                num_resamples = 0
            replicates = Replicates(
                point=point,
                values=np.empty(num_resamples),
                images=images,
                trials=int(trials.sum()),
                undefined=flag_of(statistic),
            )
            if is_carried(statistic) and not np.isnan(point):
                replicates = with_contributions(replicates, units.add_up(statistic.contributions()))
            if has_bounds and is_bounded(statistic):
                error = standard_error(units.add_up(statistic.influence()), images)
                binary = units.number is None and statistic.is_binary()
                replicates = with_bounds(replicates, statistic, totals=None, error=error, binary=binary)
            results.append(replicates)
        # Chunks outside, statistics inside: the weights are the largest array and are drawn once.
        for start, weights in self._chunks():
            for (statistic, _), replicates in zip(statistics, results, strict=True):
                if len(replicates.values):
                    replicates.values[start : start + weights.shape[1]] = statistic.evaluate(weights)
        return results

    def _chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield (first resample, image weights ``(n, r)``), in pieces of bounded memory."""
        num_units = self._units.num_units
        if self._num_resamples <= self._rows:
            if self._kept is None:
                shared = num_units * self._num_resamples <= _SHARED_WEIGHTS
                draw = _shared_weights if shared else image_weights
                self._kept = self._units.spread(draw(num_units, self._seed, range(self._num_resamples)))
            yield 0, self._kept
            return
        for start in range(0, self._num_resamples, self._rows):
            stop = min(start + self._rows, self._num_resamples)
            yield start, self._units.spread(image_weights(num_units, self._seed, range(start, stop)))

    def _is_always_defined(self, share: Share) -> bool:
        """Return whether a share exists in every resample: of 20 units, practically one at least is always drawn."""
        return self._units.count(share.denominator) >= MIN_IMAGES


def image_weights(num_images: int, seed: int, resamples: range) -> Array:
    """Return how often each image was drawn ``(n, r)``, read-only.

    Each resample has a generator of its own, so that no chunking changes a draw. Units are drawn as images are.

    Four resamples of three images, each of three draws:

    >>> from moeprobe.metrics.stats.bootstrap import image_weights
    >>> image_weights(3, seed=0, resamples=range(4)).sum(0).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    weights = np.empty((num_images, len(resamples)))
    for column, resample in enumerate(resamples):
        images = generator(seed, "bootstrap", draw=resample).integers(num_images, size=num_images)
        weights[:, column] = np.bincount(images, minlength=num_images)
    weights.flags.writeable = False
    return weights


_shared_weights = lru_cache(maxsize=4)(image_weights)
