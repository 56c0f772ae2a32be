"""What a number computed from sums per image is, and the simplest of them: ratios of sums.

A statistic is asked in one of two ways. For up to ``linearized.LARGEST`` images it gets the sums of all of them and is
evaluated under weights, one set per resample. For more it sees them block by block, twice: ``totals`` of the blocks add
up to the totals of the run, from which its ``value`` and each image's ``influence`` follow.

Axes: R resamples, n images.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats import proportions
from moeprobe.metrics.stats.proportions import critical

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


Returned = TypeVar("Returned")


class ImageCache:
    """Numbers of each image of a block, which are kept while its columns are read once more."""

    def __init__(self) -> None:
        self._numbers: dict[str, Any] = {}

    def once(self, name: str, compute: Callable[[], Returned]) -> Returned:
        """Return numbers by their name, computed the first time."""
        if name not in self._numbers:
            self._numbers[name] = compute()
        numbers: Returned = self._numbers[name]
        return numbers


# An array, a table of counts or a tuple of totals: what ``add`` adds up.
Totals = Any


class Statistic(Protocol):
    """A number computed from sums per image under weights."""

    def evaluate(self, weights: Array) -> Array:
        """Return the values ``(R,)`` under image weights ``(n, R)``, whole numbers; NaN where there is none."""

    def influence(self) -> Array:
        """Return each image's influence ``(n,)``: the derivative of the value by the image's weight, all weights one.

        It adds up to 0, since only shares matter; the sum of its squares is the variance of the value over images to
        first order (the delta method). NaN where there is no value.
        """


@runtime_checkable
class Additive(Statistic, Protocol):
    """A statistic that can also be computed block by block."""

    def totals(self) -> Totals:
        """Return the contribution of a block's images to the totals."""

    def value(self, totals: Totals) -> float:
        """Return the number that the totals of all images come to; NaN where there is none."""

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the influence of the block's images ``(n,)`` on the value of all; None = the block is all there is."""


@runtime_checkable
class Bounded(Statistic, Protocol):
    """A statistic of shares of images, whose interval keeps a width near 0 and 1."""

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float] | None:
        """Return its interval over ``images``, given its standard error; None = use the resamples.

        ``totals`` cover all images; None = the statistic's own images.
        """

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a share of one moves it."""

    def is_binary(self) -> bool:
        """Return whether every image is right or wrong as a whole."""


@runtime_checkable
class Carried(Statistic, Protocol):
    """A mean of losses, which a few images may carry: see ``carriers``."""

    def contributions(self, totals: Totals | None = None) -> Array:
        """Return what each of the block's images ``(n,)`` adds to the value of all; ``totals`` as for influences."""


def expand_linearly(value: float, influence: Array, weights: Array) -> Array:
    """Return the linear approximation of a statistic under weights ``(n, R)``, from its value at weights of 1."""
    return value + influence @ (weights - 1)


def is_linear(statistic: Statistic) -> bool:
    """Return whether intervals of a statistic are linearized for any number of images, since resamples mislead."""
    return getattr(statistic, "linear", False)


def flag_of(statistic: Statistic) -> str:
    """Return the flag of a statistic that has trials and no value."""
    return getattr(statistic, "undefined", "collapsed")


def counted_trials(statistic: Statistic, totals: Totals | None) -> Any:
    """Return the trials of each image ``(n,)`` where they follow from the totals; None = the estimator's own."""
    trials_of = getattr(statistic, "counted_trials", None)
    return None if trials_of is None else trials_of(totals)


def is_additive(statistic: object) -> TypeGuard[Additive]:
    """Whether a statistic, and all that it is computed from, can be added up block by block."""
    parts = getattr(statistic, "parts", ())
    kind: Any = type(statistic)
    return _has_methods(kind, Additive) and all(is_additive(part) for part in parts)


def is_bounded(statistic: object) -> TypeGuard[Bounded]:
    """Whether its interval follows from shares of images."""
    kind: Any = type(statistic)
    return _has_methods(kind, Bounded)


def is_carried(statistic: object) -> TypeGuard[Carried]:
    """Whether it is a mean of losses."""
    kind: Any = type(statistic)
    return _has_methods(kind, Carried)


@cache
def _has_methods(kind: Any, protocol: Any) -> bool:
    """Return whether objects of a class satisfy a protocol of methods; to ask each of them takes a while."""
    return issubclass(kind, protocol)


def add(first: Totals, second: Totals, cached_sums: dict[tuple[int, int], Totals]) -> Totals:
    """Return the sum of two totals; ``cached_sums`` lets what two statistics share be added up once."""
    key = id(first), id(second)
    if key not in cached_sums:
        cached_sums[key] = (
            tuple(add(part, other_part, cached_sums) for part, other_part in zip(first, second, strict=True))
            if isinstance(first, tuple)
            else first + second
        )
    return cached_sums[key]


@dataclass(frozen=True)
class Ratio:
    """sum(numerator) / sum(denominator), each ``(n,)``.

    Two images with 1 of 2 and 3 of 8 tokens, 4 of 10 in all; a resample may have the first one twice, 2 of 4:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.statistic import Ratio
    >>> Ratio(np.array([1.0, 3.0]), np.array([2.0, 8.0])).evaluate(np.array([[1.0, 2.0], [1.0, 0.0]])).tolist()
    [0.4, 0.5]
    """

    numerator: Array
    denominator: Array

    def evaluate(self, weights: Array) -> Array:
        """Return the ratio under each set of weights."""
        return divide(self.numerator @ weights, self.denominator @ weights)

    def totals(self) -> Totals:
        """Return the two sums."""
        return np.array([self.numerator.sum(), self.denominator.sum()])

    def value(self, totals: Totals | None = None) -> float:
        """Return the ratio of the two sums."""
        over, total = self.totals() if totals is None else totals
        return float(divide(over, total))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (numerator − value · denominator) / sum of the denominators."""
        over, total = self.totals() if totals is None else totals
        return divide(self.numerator - divide(over, total) * self.denominator, total)


@dataclass(frozen=True)
class MeanLoss(Ratio):
    """A ratio whose numerator is a loss, or a change of one."""

    def contributions(self, totals: Totals | None = None) -> Array:
        """Return each numerator / sum of the denominators."""
        _, total = self.totals() if totals is None else totals
        return divide(self.numerator, total)


@dataclass(frozen=True)
class Share(Ratio):
    """A ratio whose numerator is between 0 and the denominator in every image."""

    def bounds(self, totals: Totals | None, error: float, images: int) -> tuple[float, float]:
        """Return its score interval over ``images``."""
        return proportions.score_interval(self.value(totals), error, images)

    def swing(self, totals: Totals | None) -> float:
        """Return by how much a share of one moves it."""
        return 1.0

    def is_binary(self) -> bool:
        """Whether every image is right or wrong as a whole."""
        is_whole = (self.numerator == 0) | (self.numerator == 1)
        return bool(is_whole.all() and self.denominator.max(initial=0) <= 1)


@dataclass(frozen=True)
class Contrast(Ratio):
    """A weighted difference of shares: in no image is the numerator further from 0 than ``most`` denominators."""

    most: float

    def bounds(self, totals: Totals | None, error: float, images: int) -> None:
        """Return None: it is around 0, where resamples vary to both sides."""

    def swing(self, totals: Totals | None) -> float:
        """Return the largest value in one image."""
        return self.most

    def is_binary(self) -> bool:
        """Whether it is of images that are right or wrong as a whole; contrasts go by halves of them."""
        return bool((2 * self.numerator % 1 == 0).all() and self.denominator.max(initial=0) <= 1)


def standard_error(influence: Array, images: int) -> float:
    """Return the standard error over images that the influences ``(n,)`` come to, by the delta method.

    A mean of two images with 0.4 and 0.8: influences ∓0.1, so the error is √(2/1 · 0.02), half of their distance:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.statistic import standard_error
    >>> round(standard_error(np.array([-0.1, 0.1]), images=2), 3)
    0.2
    """
    return error_of(float(np.square(influence).sum()), images)


def error_of(squares: float, images: int) -> float:
    """Return the standard error that the summed squares of the influences come to; NaN of a single image."""
    return float(np.sqrt(images / (images - 1) * squares)) if images > 1 else np.nan


def is_beyond(mean: float, squares: float, images: int, *, floor: float) -> bool:
    """Whether a mean over images, and its interval (t standard errors), lie above a floor.

    ``squares``: the summed squares of the images' influences on the mean.
    """
    reach = critical(images) * error_of(squares, images) if images > 1 else 0.0
    return mean - reach > floor


def divide(numerator: Any, denominator: Any, *, empty: float = np.nan) -> Array:
    """Return the quotient, ``empty`` where the denominator is 0."""
    defined = denominator != 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), empty)


@dataclass(frozen=True)
class MeanOf:
    """The mean of statistics of the same images; NaN where one of them has no value."""

    parts: tuple[Additive, ...]

    def evaluate(self, weights: Array) -> Array:
        """Return the mean under each set of weights."""
        return self._mean(part.evaluate(weights) for part in self.parts)

    def totals(self) -> Totals:
        """Return the totals of each."""
        return tuple(part.totals() for part in self.parts)

    def value(self, totals: Totals) -> float:
        """Return the mean of their values."""
        return sum(part.value(of_part) for part, of_part in zip(self.parts, totals, strict=True)) / len(
            self.parts
        )

    def influence(self, totals: Totals | None = None) -> Array:
        """Return the mean of each image's influences on them."""
        of_parts = [None] * len(self.parts) if totals is None else totals
        return self._mean(part.influence(of_part) for part, of_part in zip(self.parts, of_parts, strict=True))

    def _mean(self, of_parts: Iterable[Array]) -> Array:
        return np.asarray(sum(of_parts) / len(self.parts))


@dataclass(frozen=True)
class PartOf:
    """sum(part) / sum(total), each ``(n,)``; NaN where the mean of the whole is not known to be above ``floor``.

    A share of mere rounding can be any number, and its resamples do not show that. So there is none where the mean
    of the whole is at most the floor, or its interval (t standard errors) reaches the floor.

    Attributes:
        part: the numerator, of any sign.
        total: what it is a part of, never negative.
        count: trials that ``total`` is the sum over.
        floor: the mean per trial that rounding explains.
    """

    part: Array
    total: Array
    count: Array
    floor: float
    undefined: ClassVar[str] = "no_mismatch"

    def evaluate(self, weights: Array) -> Array:
        """Return the share under each set of weights; NaN where the whole, of all images, is rounding."""
        # Judged by all images: in a resample the same share must not come and go.
        if self._is_rounding(self.totals()):
            return np.full(weights.shape[1], np.nan)
        return divide(self.part @ weights, self.total @ weights)

    def totals(self) -> Totals:
        """Return the sums of part, whole w and count c, then Σ w², Σ w c, Σ c², and the images with c > 0."""
        total, count = self.total, self.count
        sums = [self.part.sum(), total.sum(), count.sum()]
        return np.array([*sums, total @ total, total @ count, count @ count, np.count_nonzero(count)])

    def value(self, totals: Totals) -> float:
        """Return the share."""
        return np.nan if self._is_rounding(totals) else float(divide(totals[0], totals[1]))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (part − value · whole) / sum of the wholes."""
        totals = self.totals() if totals is None else totals
        return divide(self.part - self.value(totals) * self.total, totals[1])

    def contributions(self, totals: Totals | None = None) -> Array:
        """Return the influences: an image weighs by its part and by its whole."""
        return self.influence(totals)

    def _is_rounding(self, totals: Totals) -> bool:
        _, total, count, squares, products, counts, images = (float(value) for value in totals)
        if count == 0:
            return True
        mean = total / count
        # Σ (w − mean c)², whose last bits may be below 0.
        spread = max(squares - 2 * mean * products + mean**2 * counts, 0.0) / count**2
        return not is_beyond(mean, spread, int(images), floor=self.floor)
