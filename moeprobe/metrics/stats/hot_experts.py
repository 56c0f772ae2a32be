"""Do the experts that are hot in one window of requests stay hot in the next?

Each image (here a request) belongs to one window; the hot experts of a window are the eighth of the experts with the
most choices in it.

Axes: R resamples, n images, W windows, E experts.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.kappa import room
from moeprobe.metrics.stats.statistic import Array, Statistic, divide, is_linear
from moeprobe.runtime.caching import cache_last
from moeprobe.runtime.seeds import generator

# One of so many experts is hot.
EXPERTS_PER_HOT = 8
# Orders of the images that show what there is without any order in time.
_SHUFFLES = 200


def num_hot(num_experts: int) -> int:
    """Return how many of E experts count as hot: an eighth, and at least one.

    >>> from moeprobe.metrics.stats.hot_experts import num_hot
    >>> num_hot(64), num_hot(4)
    (8, 1)
    """
    return max(num_experts // EXPERTS_PER_HOT, 1)


def sums_by_window(values: Array, window: NDArray[np.int64], num_windows: int, weights: Array) -> Array:
    """Return the sums of values ``(n, E)`` in each window ``(W, E, R)``, of images with weights ``(n, R)``."""
    rows = (window == number for number in range(num_windows))
    return np.stack([values[inside].T @ weights[inside] for inside in rows])


@dataclass(frozen=True)
class Windowed:
    """Loads of images in windows: what the statistics of this file are computed from.

    Attributes:
        histogram: each image's choices by expert ``(n, E)``.
        window: the window of each image ``(n,)``.
        num_windows: W.
    """

    histogram: Array
    window: NDArray[np.int64]
    num_windows: int

    @cache_last
    def loads(self, weights: Array) -> Array:
        """Return the load of each expert in each window ``(W, E, R)``."""
        return sums_by_window(self.histogram, self.window, self.num_windows, weights)

    @cached_property
    def total(self) -> Array:
        """The load of each expert in each window ``(W, E)``."""
        return self.loads(np.ones((len(self.window), 1)))[..., 0]

    @cached_property
    def tie_breaks(self) -> Array:
        """Numbers below 1 ``(W, E, 1)`` that order experts of equal load, in each window otherwise.

        In one order for all windows, experts that nobody chooses would be hot in each of them.
        """
        shape = self.num_windows, self.histogram.shape[1], 1
        return generator(0, "ties of hot experts").random(shape)

    @cached_property
    def shuffled_loads(self) -> Array:
        """Loads with the images in random order ``(W, E, S)``; windows keep their numbers of images."""
        random, windows = generator(0, "shuffled requests"), np.arange(self.num_windows)[:, None]
        loads = [
            (random.permutation(self.window) == windows).astype(np.float64) @ self.histogram
            for _ in range(_SHUFFLES)
        ]
        return np.stack(loads, axis=-1)

    @cache_last
    def hot(self, loads: Array) -> NDArray[np.bool_]:
        """Return which experts are hot in each window ``(W, E, R)``."""
        # Loads are rounded first: otherwise rounding errors of weighted sums, not the tie breaks, would order ties.
        count = num_hot(loads.shape[1])
        order = np.argpartition(np.round(loads, 6) + 0.5 * self.tie_breaks, -count, axis=1)
        hot = np.zeros(loads.shape, bool)
        np.put_along_axis(hot, order[:, -count:], values=True, axis=1)
        return hot


def _overlap(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Array:
    """Return the Jaccard index of sets of experts, over the axis before the last."""
    index: Array = (first & second).sum(-2) / (first | second).sum(-2)
    return index


@dataclass(frozen=True)
class HotOverlap:
    """Jaccard index of the hot experts of two windows: the mean over windows that follow one another.

    Attributes:
        windowed: the loads.
        ends: compare the first window with the last one instead.
    """

    windowed: Windowed
    ends: bool = False

    def evaluate(self, weights: Array) -> Array:
        """Return the index under each set of weights, of windows that have a load."""
        return self.of_loads(self.windowed.loads(weights))

    def of_loads(self, loads: Array) -> Array:
        """Return the index for loads ``(W, E, R)``."""
        hot, busy = self.windowed.hot(loads), loads.sum(1) > 0
        first, second = (slice(0, 1), slice(-1, None)) if self.ends else (slice(0, -1), slice(1, None))
        # A resample may leave a window empty, where no expert is hot.
        both_busy = busy[first] & busy[second]
        return divide((_overlap(hot[first], hot[second]) * both_busy).sum(0), both_busy.sum(0))

    def influence(self) -> Array:
        """Return 0: a set of experts moves in steps, so that its intervals come from resamples."""
        return np.zeros(len(self.windowed.histogram))


@dataclass(frozen=True)
class Shuffled:
    """A statistic of windows with the images in random order: what it is where time does not matter.

    Its interval holds 95 % of the shuffles, so that a value outside of it is a permutation test.
    """

    statistic: "HotOverlap | LoadChange"

    @cached_property
    def values(self) -> Array:
        """The statistic of each shuffle ``(S,)``."""
        return self.statistic.of_loads(self.statistic.windowed.shuffled_loads)

    def evaluate(self, weights: Array) -> Array:
        """Return the mean of all shuffles or, for resamples, one of them for each."""
        if weights.shape[1] == 1:
            return self.values.mean(keepdims=True)
        return self.values[np.arange(weights.shape[1]) % _SHUFFLES]

    def influence(self) -> Array:
        """Return 0: it is a level to compare with."""
        return np.zeros(len(self.statistic.windowed.histogram))


@dataclass(frozen=True)
class FixedLevel:
    """A level that no image changes, for n images; ``linear`` as of the number that it is the level of."""

    level: float
    images: int
    linear: bool = False

    def evaluate(self, weights: Array) -> Array:
        """Return the level, whatever the weights."""
        return np.full(weights.shape[1], self.level)

    def influence(self) -> Array:
        """Return 0."""
        return np.zeros(self.images)


@dataclass(frozen=True)
class BeyondLevel:
    """(x − c) / (1 − c) of a statistic x and a fixed level c: κ, with the intervals of x."""

    statistic: Statistic
    level: FixedLevel

    @property
    def linear(self) -> bool:
        """Whether the statistic's intervals are linearized."""
        return is_linear(self.statistic)

    def evaluate(self, weights: Array) -> Array:
        """Return κ under each set of weights."""
        return divide(self.statistic.evaluate(weights) - self.level.level, room(self.level.level))

    def influence(self) -> Array:
        """Return the statistic's influence over 1 − c."""
        return divide(self.statistic.influence(), room(self.level.level))


@dataclass(frozen=True)
class NextLoad:
    """Share of the choices in all windows but the first that go to the experts hot in the window before."""

    windowed: Windowed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the share under each set of weights."""
        return self._share(self.windowed.loads(weights))

    def influence(self) -> Array:
        """Return the derivative of the share, for the sets of hot experts that there are."""
        loads = self.windowed.total
        hot = self.windowed.hot(loads[..., None])[..., 0]
        # No window comes before the first one.
        before = np.concatenate([np.zeros_like(hot[:1]), hot[:-1]])[self.windowed.window]
        histogram = self.windowed.histogram * (self.windowed.window > 0)[:, None]
        share = self._share(loads[..., None])[0]
        return divide((histogram * before).sum(1) - share * histogram.sum(1), loads[1:].sum())

    def _share(self, loads: Array) -> Array:
        hot = self.windowed.hot(loads)
        return divide((loads[1:] * hot[:-1]).sum((0, 1)), loads[1:].sum((0, 1)))


@dataclass(frozen=True)
class LoadCorrelation:
    """Correlation (Pearson) over experts of the loads of two windows: the mean over windows that follow one another."""

    windowed: Windowed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the correlation under each set of weights; NaN where all experts of a window are equally loaded."""
        mean: Array = self._correlations(self.windowed.loads(weights)).mean(0)
        return mean

    def influence(self) -> Array:
        """Return the derivative: of the correlation of unit vectors a and b by a it is (b − r a) / |a|."""
        loads = self.windowed.total
        # Centered, so that the correlation is a product of unit vectors.
        off = loads - loads.mean(1, keepdims=True)
        length = np.linalg.norm(off, axis=1)[:, None]
        unit = divide(off, length)
        correlation = self._correlations(loads[..., None])
        slope = np.zeros_like(loads)
        slope[:-1] += unit[1:] - correlation * unit[:-1]
        slope[1:] += unit[:-1] - correlation * unit[1:]
        slope = divide(slope, length) / len(correlation)
        return (self.windowed.histogram * slope[self.windowed.window]).sum(1)

    def _correlations(self, loads: Array) -> Array:
        """Return the correlation of each window and the next ``(W − 1, R)``."""
        off = loads - loads.mean(1, keepdims=True)
        unit = divide(off, np.linalg.norm(off, axis=1)[:, None])
        correlation: Array = (unit[:-1] * unit[1:]).sum(1)
        return correlation


@dataclass(frozen=True)
class LoadChange:
    """Share of the choices that other experts have in the next window: half of Σ |p − q|, the mean over windows.

    p and q are the experts' shares in a window and the next (total variation distance).
    """

    windowed: Windowed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the share under each set of weights; NaN where a window has no load."""
        return self.of_loads(self.windowed.loads(weights))

    def of_loads(self, loads: Array) -> Array:
        """Return the share for loads ``(W, E, R)``."""
        shares = divide(loads, loads.sum(1, keepdims=True))
        change: Array = np.abs(np.diff(shares, axis=0)).sum(1).mean(0) / 2
        return change

    def influence(self) -> Array:
        """Return the derivative, for the signs of the differences that there are."""
        loads = self.windowed.total
        size = loads.sum(1, keepdims=True)
        shares = divide(loads, size)
        sign = np.sign(np.diff(shares, axis=0)) / (2 * (len(loads) - 1))
        slope = np.zeros_like(loads)
        slope[:-1] -= sign
        slope[1:] += sign
        slope = divide(slope - (slope * shares).sum(1, keepdims=True), size)
        return (self.windowed.histogram * slope[self.windowed.window]).sum(1)
