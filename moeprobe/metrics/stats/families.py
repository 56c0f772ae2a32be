"""Paired differences that are judged together: a standard error, p values, and intervals that hold all at once.

A family is what one question asks: one metric, one pair of checkpoints, every layer and severity. The more cells it
has, the likelier that one of them is an outlier by chance; so p values are Holm's, and the intervals cover all cells of
the family at once in 95 % of experiments. Resamples are drawn as for every other interval: whole images, the same for
both checkpoints.

Sources: delta method and infinitesimal jackknife, Efron 1982; step-down p values, Holm 1979; max-|t|, Romano and Wolf
2005; t instead of normal tails around resamples, Hesterberg 2015.

Axes: R resamples, n images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.metrics.stats.statistic import Array, standard_error

POWER = 0.8
# Gates and scores are float32, so what is below this in every image is their rounding. One token of an image counts for
# more than that, however many images there are.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Difference:
    """A paired difference: its value under each resample, and its standard error over images."""

    replicates: Replicates
    standard_error: float

    @property
    def identical(self) -> bool:
        """Whether the two are the same in every image except for rounding: no difference, no error, in no resample."""
        values = self.replicates.values
        everything = np.abs([self.replicates.point, *values[~np.isnan(values)]])
        return self.standard_error == 0 and len(everything) > 1 and bool((everything < _ROUNDING).all())

    @property
    def standardized(self) -> bool:
        """Whether there is an interval and an error to measure it with."""
        return not self.replicates.interval().flag and self.standard_error > 0

    @property
    def spread(self) -> float:
        """The standard error that resamples have to first order: without the n / (n − 1), and without the image more.

        No resample has an image that was not drawn: to measure it with what that adds would take the addition back.
        """
        of_images = np.sqrt(max(self.standard_error**2 - self.replicates.grain**2, 0.0))
        return float(of_images * np.sqrt(1 - 1 / self.replicates.images))


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


def difference(minuend: Replicates, subtrahend: Replicates, influence: Array) -> Difference:
    """Return ``minuend`` − ``subtrahend``; ``influence`` ``(n,)`` is the difference of their influences."""
    return Difference(minuend.minus(subtrahend), difference_error(minuend, subtrahend, influence))


def difference_error(minuend: Replicates, subtrahend: Replicates, influence: Array) -> float:
    """Return the standard error of ``minuend`` − ``subtrahend``; ``influence`` ``(n,)`` as for ``difference``.

    The error comes from the delta method: the root of n / (n − 1) Σ influence², n the images with trials, and of one
    image more where an image is right or wrong; 0 where no image differs by more than rounding.
    """
    n, grain = min(minuend.images, subtrahend.images), max(minuend.grain, subtrahend.grain)
    error = float(np.hypot(standard_error(influence, n), grain)) if n > 1 else np.nan
    # n times an image's influence is by how much the image itself differs.
    return 0.0 if n * np.abs(influence).max() < _ROUNDING else error


def judge(family: Sequence[Difference]) -> list[Judged]:
    """Return p values and simultaneous intervals of a family of differences over the same resamples.

    The interval of a cell is value ± c · SE · t / z: c is the 95 % quantile, over resamples, of the largest
    |resampled − value| / spread in the family, spread the linearized error that resamples have; t / z widens normal
    tails to n − 1 degrees of freedom. A constant difference (SE = 0) is its own interval, except for shares
    that are the same in every image, see ``Replicates.interval``. Where the error vanishes to first order
    but the resamples vary, there is no interval.
    """
    normal = float(-special.ndtri((1 - CONFIDENCE) / 2))
    largest = _largest([member for member in family if member.standardized], otherwise=normal)
    cells = sum(member.standardized for member in family)
    p_values = [_p(member) for member in family]
    of_cell = zip(family, p_values, _holm(p_values), strict=True)
    verdicts = []
    for member, *tested in of_cell:
        reach, detectable = np.nan, np.nan
        value, values = member.replicates.point, member.replicates.values
        factor = (
            largest * critical(member.replicates.images) / normal if member.replicates.images > 1 else np.nan
        )
        if member.standardized:
            reach = factor * member.standard_error
            detectable = (factor + special.ndtri(POWER)) * member.standard_error
        elif not member.replicates.interval().flag and np.nanmax(values) - np.nanmin(values) < _ROUNDING:
            reach = member.replicates.missed(factor) if member.identical else 0.0
        p, p_holm = (1.0, 1.0) if member.identical else tested
        verdicts.append(Judged(value - reach, value + reach, cells, p, p_holm, detectable))
    return verdicts


def _largest(family: Sequence[Difference], *, otherwise: float) -> float:
    """Return the 95 % quantile of the largest deviation in the family, in standard errors; of none the other number."""
    if not family:
        return otherwise
    largest = np.zeros(len(family[0].replicates.values))
    for member in family:
        deviation = np.abs(member.replicates.values - member.replicates.point) / member.spread
        largest = np.fmax(largest, deviation)  # passes over resamples that are undefined in this cell
    return float(np.quantile(largest, CONFIDENCE))


def _p(member: Difference) -> float:
    """Return the two-sided p of no difference; NaN where there is no error to measure it with."""
    if not member.standardized:
        return np.nan
    t = abs(member.replicates.point) / member.standard_error
    return float(2 * special.stdtr(member.replicates.images - 1, -t))


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down p values; NaN stays NaN and counts for none."""
    p = np.asarray(p_values, dtype=float)
    defined = np.flatnonzero(~np.isnan(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    stepped = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    corrected = np.full(len(p), np.nan)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected.tolist()
