"""How unevenly is the work of experts spread over the ranks of expert parallelism?

A layer takes as long as its busiest rank. So the imbalance is the load of the busiest rank, added up over layers (and
windows), divided by the mean load: 1 = even, the number of ranks = all on one.

Axes: n images, W windows, L layers, N ranks.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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

    def totals(self, weights: Array | None = None) -> Array:
        """Return the loads of each window ``(W, L, N)``, of images with weights ``(n,)``."""
        loads = self.loads if weights is None else self.loads * weights[:, None, None]
        totals = np.zeros((self.num_windows, *loads.shape[1:]))
        np.add.at(totals, self.window, loads)
        return totals


def _imbalance(totals: Array) -> float:
    """Return the loads of the busiest ranks over the mean loads, of ``(W, L, N)``."""
    return float(divide(totals.max(-1).sum(), totals.mean(-1).sum()))


@dataclass(frozen=True)
class RankImbalance:
    """Load of the busiest rank over the mean load, of all layers and windows together."""

    placed: Placed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the imbalance under each set of weights."""
        return np.array([_imbalance(self.placed.totals(column)) for column in weights.T])

    def influence(self) -> Array:
        """Return the derivative, for the busiest ranks that there are."""
        totals = self.placed.totals()
        busiest = totals.argmax(-1)[self.placed.window]
        loads = self.placed.loads
        of_busiest = np.take_along_axis(loads, busiest[..., None], axis=-1).sum((1, 2))
        mean = loads.mean(-1).sum(1)
        return divide(of_busiest - _imbalance(totals) * mean, totals.mean(-1).sum())


@dataclass(frozen=True)
class EvenImbalance:
    """The imbalance that a router comes to which chooses all experts equally often, at as many choices.

    Few choices are uneven by accident. The loads of ranks are then nearly normal, with a fixed sum.

    Attributes:
        expected: loads of the ranks ``(n, L, N)`` that such a router gives.
        variance: of these loads.
    """

    expected: Placed
    variance: Placed
    linear: ClassVar[bool] = True

    def evaluate(self, weights: Array) -> Array:
        """Return the level of all images, whatever the weights."""
        return np.full(weights.shape[1], self.level)

    @cached_property
    def level(self) -> float:
        """The imbalance."""
        expected, variance = self.expected.totals(), self.variance.totals()
        ranks = expected.shape[-1]
        if ranks < 2:
            return _imbalance(expected)
        draws = generator(0, "even router").standard_normal((_DRAWS, ranks))
        # What one rank has more, others have less: Var x = 1, Cov = −1 / (N − 1).
        draws = (draws - draws.mean(1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
        busiest = sum(
            (mean + np.sqrt(spread) * draws).max(-1).mean()
            for mean, spread in zip(expected.reshape(-1, ranks), variance.reshape(-1, ranks), strict=True)
        )
        return float(divide(busiest, expected.mean(-1).sum()))

    def influence(self) -> Array:
        """Return 0: it is a level to compare with."""
        return np.zeros(len(self.expected.loads))
