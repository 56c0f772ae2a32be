"""Paired differences that are judged together: a standard error, p values, and intervals that hold all at once.

A family is what one question asks: one metric, one pair of checkpoints, every layer and severity. The more cells it
has, the likelier that one of them is an outlier by chance; so p values are Holm's, and the intervals cover all cells of
the family at once in 95 % of experiments. Resamples are drawn as for every other interval: whole images, the same for
both checkpoints.

A series of checkpoints is looked at again and again. Where N looks were decided on beforehand, each has a share of the
level, 5 % / N (Bonferroni), so that its intervals hold in all looks at once.

Sources: delta method and infinitesimal jackknife, Efron 1982; step-down p values, Holm 1979; max-|t|, Romano and Wolf
2005; t instead of normal tails around resamples, Hesterberg 2015; independent comparisons, Šidák 1967.

Axes: R resamples, n images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy import special

from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.metrics.stats.statistic import Array, standard_error
from moeprobe.metrics.stats.two_way import TwoWay

POWER = 0.8
# Gates and scores are float32, so what is below this in every image is their rounding. One token of an image counts for
# more than that, however many images there are.
_ROUNDING = 1e-6
# Resamples beyond a quantile below which it is not read off them.
_FEWEST_BEYOND = 10
_NONE = np.empty(0)


@dataclass(frozen=True)
class Difference:
    """A paired difference: its value under each resample, and its standard error over images."""

    replicates: Replicates
    standard_error: float

    @property
    def identical(self) -> bool:
        """Whether the two are the same in every image except for rounding: no difference, no error, in no resample."""
        values = self.replicates.values
        # Resamples without a value say nothing about equality.
        everything = np.abs([self.replicates.point, *values[~np.isnan(values)]])
        return self.standard_error == 0 and len(everything) > 1 and bool((everything < _ROUNDING).all())

    @cached_property
    def flag(self) -> str:
        """Why it has no interval; empty where it has one."""
        return self.replicates.interval().flag

    @property
    def standardized(self) -> bool:
        """Whether there is an interval and an error to measure it with."""
        return not self.flag and self.standard_error > 0

    @property
    def spread(self) -> float:
        """The standard error that resamples have to first order: without the n / (n − 1), and without the image more.

        No resample has an image that was not drawn: to measure it with what that adds would take the addition back.
        """
        of_images = np.sqrt(max(self.standard_error**2 - self.replicates.grain**2, 0.0))
        return float(of_images * np.sqrt(1 - 1 / self.replicates.images))

    def deviations(self) -> Array | None:
        """Return how far each resample is from the value, in its spread ``(R,)``; None where none is, or no error."""
        # All of the error may be that of one image more, which no resample has; and none has other perturbations.
        if not self.standardized or self.spread == 0 or self.replicates.crossed is not None:
            return None
        return np.abs(self.replicates.values - self.replicates.point) / self.spread


@dataclass(frozen=True)
class Judged:
    """What the family says of one of its differences; NaN where there is nothing to say.

    Attributes:
        sim_low: lower end of the simultaneous 95 % interval.
        sim_high: upper end.
        family_cells: number of differences that the interval holds for at once.
        p: probability of a t at least as large if there were no difference, n − 1 degrees of freedom; 1 where the two
            are identical.
        p_holm: the same, corrected for the family (whose identical members are no test).
        detectable: smallest true difference whose interval would exclude 0 in 80 % of experiments of this size.
    """

    sim_low: float
    sim_high: float
    family_cells: int
    p: float
    p_holm: float
    detectable: float


def confidence_of(looks: int) -> float:
    """Return the confidence of each of so many looks, which all hold at once in 95 % of series (Bonferroni).

    >>> from moeprobe.metrics.stats.families import confidence_of
    >>> confidence_of(1), confidence_of(10)
    (0.95, 0.995)
    """
    return 1 - (1 - CONFIDENCE) / looks


def reads_resamples(looks: int, resamples: int) -> bool:
    """Whether c is read off so many resamples: of several looks, at least ten of them have to lie beyond it.

    >>> from moeprobe.metrics.stats.families import reads_resamples
    >>> reads_resamples(10, 2000), reads_resamples(11, 2000)
    (True, False)
    """
    return looks == 1 or (1 - confidence_of(looks)) * resamples >= _FEWEST_BEYOND


def difference(minuend: Replicates, subtrahend: Replicates, influence: Array) -> Difference:
    """Return ``minuend`` − ``subtrahend``; ``influence`` ``(n,)`` is the difference of their influences."""
    return Difference(minuend.minus(subtrahend), difference_error(minuend, subtrahend, influence))


def difference_error(minuend: Replicates, subtrahend: Replicates, influence: Array) -> float:
    """Return the standard error of ``minuend`` − ``subtrahend``; ``influence`` ``(n,)`` as for ``difference``.

    The error comes from the delta method: the root of n / (n − 1) Σ influence², n the images with trials, and of one
    image more where an image is right or wrong; 0 where no image differs by more than rounding.
    """
    n, grain = min(minuend.images, subtrahend.images), max(minuend.grain, subtrahend.grain)
    # The error of one image more enters like an independent one.
    error = float(np.hypot(standard_error(influence, n), grain)) if n > 1 else np.nan
    # n times an image's influence is by how much the image itself differs.
    return 0.0 if n * np.abs(influence).max() < _ROUNDING else error


@dataclass(frozen=True)
class Evidence:
    """What a family needs to know of one of its differences once its resamples are gone.

    Attributes:
        summary: the difference without its values under resamples.
        standard_error: as in ``Difference``.
        flag: why it has no interval; empty where it has one.
        identical: as in ``Difference``.
        constant: whether no resample moves it by more than rounding.
        freedom: degrees of freedom of its error, where that is over images and perturbations; None = over images.
    """

    summary: Replicates
    standard_error: float
    flag: str
    identical: bool
    constant: bool
    freedom: float | None = None

    @classmethod
    def of(cls, difference: Difference) -> Self:
        """Return the evidence of a difference."""
        crossed = difference.replicates.crossed
        freedom = None if crossed is None else TwoWay.of(crossed).freedom
        values, flag = difference.replicates.values, difference.flag
        constant = not flag and bool(np.nanmax(values) - np.nanmin(values) < _ROUNDING)
        summary = replace(
            difference.replicates, values=_NONE, influence=None, contributions=None, crossed=None
        )
        return cls(summary, difference.standard_error, flag, difference.identical, constant, freedom)

    @property
    def standardized(self) -> bool:
        """Whether there is an interval and an error to measure it with."""
        return not self.flag and self.standard_error > 0


class DifferenceFamily:
    """Differences that are judged together, added one by one; of their resamples the largest deviations are kept."""

    def __init__(self) -> None:
        self._largest: Array | None = None
        self._members: list[Evidence] = []

    def add(self, evidence: Evidence, deviations: Array | None) -> int:
        """Add a difference with its ``deviations`` (None = it has none), and return its place in ``judge()``."""
        self._members.append(evidence)
        if deviations is not None:
            # Passes over resamples that are undefined in this cell.
            previous = np.zeros(len(deviations)) if self._largest is None else self._largest
            self._largest = np.fmax(previous, deviations)
        return len(self._members) - 1

    def judge(self, *, looks: int) -> list[Judged]:
        """Return p values and simultaneous intervals, in the order in which differences were added.

        The interval of a cell is value ± c · SE · t / z: c is the 95 % quantile, over resamples, of the largest
        |resampled − value| / spread in the family, spread the linearized error that resamples have; t / z widens normal
        tails to n − 1 degrees of freedom. A constant difference (SE = 0) is its own interval, except for shares
        that are the same in every image, see ``Replicates.interval``. Where the error vanishes to first order
        but the resamples vary, there is no interval.

        Args:
            looks: of a series, in which all of them are to hold; the quantile is then 1 − 5 % / ``looks``, and Holm's
                p is multiplied by it. Where fewer than ten resamples lie beyond, Šidák's rule over the family takes
                the place of the resamples.
        """
        cells, confidence = sum(member.standardized for member in self._members), confidence_of(looks)
        # So much is left of the confidence for each of the family's cells, were they independent.
        alone = confidence ** (1 / max(cells, 1))
        normal = float(-special.ndtri((1 - confidence) / 2))
        largest: float | None = normal
        if self._largest is not None:
            has_quantile = reads_resamples(looks, len(self._largest))
            # The largest deviation of any member, at its 95 % quantile, holds for all.
            largest = float(np.quantile(self._largest, confidence)) if has_quantile else None
        p_values = [_p(member) for member in self._members]
        judged = []
        for member, *tested in zip(self._members, p_values, _holm(p_values), strict=True):
            value, images = member.summary.point, member.summary.images
            reach, detectable = np.nan, np.nan
            factor = np.nan
            if member.freedom is not None:
                # Resamples of images say nothing of perturbations, so all hold at once by Šidák's rule.
                factor = -float(special.stdtrit(member.freedom, (1 - alone) / 2))
            elif images > 1 and largest is None:
                factor = critical(images, confidence=alone)
            elif images > 1 and largest is not None:
                factor = largest * critical(images, confidence=confidence) / normal
            if member.standardized:
                reach = factor * member.standard_error
                # Power: the true difference has to exceed the interval's reach with probability 80 %.
                detectable = (factor + special.ndtri(POWER)) * member.standard_error
            elif member.constant:
                reach = member.summary.unseen_difference(factor) if member.identical else 0.0
            # Two models that are identical by construction are no test.
            p, p_holm = (1.0, 1.0) if member.identical else (tested[0], min(tested[1] * looks, 1.0))
            judged.append(Judged(value - reach, value + reach, cells, p, p_holm, detectable))
        return judged


def judge(family: Sequence[Difference], *, looks: int = 1) -> list[Judged]:
    """Return what a family of differences over the same resamples says of each, see ``DifferenceFamily.judge``."""
    together = DifferenceFamily()
    for difference in family:
        together.add(Evidence.of(difference), difference.deviations())
    return together.judge(looks=looks)


def _p(member: Evidence) -> float:
    """Return the two-sided p of no difference; NaN where there is no error to measure it with."""
    if not member.standardized:
        return np.nan
    t = abs(member.summary.point) / member.standard_error
    freedom = member.summary.images - 1 if member.freedom is None else member.freedom
    return float(2 * special.stdtr(freedom, -t))


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down p values; NaN stays NaN and counts for none.

    Three tests: 3 · 0.01, 2 · 0.03, and the last one no lower than the one before:

    >>> from moeprobe.metrics.stats.families import _holm
    >>> _holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    defined = np.flatnonzero(~np.isnan(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    # Step down: the smallest p is multiplied by the number of tests, the next by one fewer.
    stepped = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    corrected = np.full(len(p), np.nan)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected.tolist()
