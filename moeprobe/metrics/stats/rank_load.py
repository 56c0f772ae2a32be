"""How unevenly is the work of experts spread over the ranks of expert parallelism?

A layer takes as long as its busiest rank. So the imbalance is the load of the busiest rank, added up over layers (and
windows), divided by the mean load: 1 = even, the number of ranks = all on one.

Axes: n images, W windows, L layers, N ranks.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.hot_experts import sums_by_window
from moeprobe.metrics.stats.statistic import Array, divide
from moeprobe.runtime.seeds import generator

# Even routers that the level of an even one is the mean of.
_DRAWS = 4096


@dataclass(frozen=True)
class Placed:
    """Loads of ranks by image.

    Attributes:
        loads: ``(n, L, N)``.
        window: the window of each image ``(n,)``; all 0 where the busiest rank of the whole is looked for.
        num_windows: W.
    """

    loads: Array
    window: NDArray[np.int64]
    num_windows: int

    def sums(self, weights: Array) -> Array:
        """Return the loads of each window ``(W, L, N, R)``, of images with weights ``(n, R)``."""
        sums = sums_by_window(self.loads.reshape(len(self.loads), -1), self.window, self.num_windows, weights)
        return sums.reshape(self.num_windows, *self.loads.shape[1:], -1)

    def totals(self) -> Array:
        """Return the loads of each window ``(W, L, N)``, of all images."""
        return self.sums(np.ones((len(self.loads), 1)))[..., 0]


def _imbalance(totals: Array) -> Array:
    """Return the loads of the busiest ranks over the mean loads ``(...)``, of ``(W, L, N, ...)``."""
    return divide(totals.max(2).sum((0, 1)), totals.mean(2).sum((0, 1)))


@dataclass(frozen=True)
class RankImbalance:
    """Load of the busiest rank over the mean load, of all layers and windows together."""

    placed: Placed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the imbalance under each set of weights."""
        return _imbalance(self.placed.sums(weights))

    def influence(self) -> Array:
        """Return the derivative, for the busiest ranks that there are."""
        totals = self.placed.totals()
        busiest = totals.argmax(-1)[self.placed.window]
        loads = self.placed.loads
        of_busiest = np.take_along_axis(loads, busiest[..., None], axis=-1).sum((1, 2))
        mean = loads.mean(-1).sum(1)
        return divide(of_busiest - _imbalance(totals) * mean, totals.mean(-1).sum())


def even_imbalance(expected: Placed, variance: Placed) -> float:
    """Return the imbalance that a router comes to which chooses all experts equally often, at as many choices.

    Few choices are uneven by accident. The loads of ranks are then nearly normal, with a fixed sum.

    Args:
        expected: loads of the ranks that such a router gives.
        variance: of these loads.
    """
    means, spreads = expected.totals(), variance.totals()
    ranks = means.shape[-1]
    if ranks < 2:
        return float(_imbalance(means))
    draws = generator(0, "even router").standard_normal((_DRAWS, ranks))
    # What one rank has more, others have less: Var x = 1, Cov = −1 / (N − 1).
    draws = (draws - draws.mean(1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    busiest = sum(
        (mean + np.sqrt(spread) * draws).max(-1).mean()
        for mean, spread in zip(means.reshape(-1, ranks), spreads.reshape(-1, ranks), strict=True)
    )
    return float(divide(busiest, means.mean(-1).sum()))
