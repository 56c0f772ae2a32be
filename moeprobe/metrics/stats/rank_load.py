"""How unevenly is the work of experts spread over the ranks of expert parallelism?

A layer takes as long as its busiest rank. So the imbalance is the load of the busiest rank, added up over layers (and
windows), divided by the mean load: 1 = even, the number of ranks = all on one.

A maximum is above 1 even where no rank is busier than another in the long run, and has no interval. It is compared with
the same requests whose experts are relabeled at random, each request's in an order of its own and the same in all
layers. Then requests are as uneven as before, each with other hot experts. An imbalance above that says that the same
experts are hot in many requests.

Axes: n images (here requests), W windows, L layers, E experts, N ranks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.hot_experts import sums_by_window
from moeprobe.metrics.stats.statistic import Array, Integers, divide
from moeprobe.runtime.seeds import generator

# How often experts are relabeled.
RELABELINGS = 200


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
    no_interval: ClassVar[str] = "maximum"

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


def relabelings(num_images: int, num_experts: Iterable[int]) -> Iterator[Mapping[int, Integers]]:
    """Yield random orders of the experts of each image ``(n, E)``, by E: one of all images at a time."""
    sizes = sorted(set(num_experts))
    for draw in range(RELABELINGS):
        yield {
            size: generator(0, "relabeled experts", str(size), draw)
            .random((num_images, size), dtype=np.float32)
            .argsort(axis=1)
            for size in sizes
        }


def busiest_ranks(choices: NDArray[np.integer[Any]], shares: Array, starts: Integers) -> Array:
    """Return the load of the busiest rank ``(1 + W,)``: of all images, and in each window.

    Two windows of one request each, two experts, and a rank for each expert. The busiest rank has 12 of 20 choices,
    and 8 and 6 in the windows:

    >>> import numpy as np
    >>> from moeprobe.metrics.stats.rank_load import busiest_ranks
    >>> busiest_ranks(np.array([[8, 2], [4, 6]]), np.eye(2), starts=np.array([0, 1])).tolist()
    [12.0, 8.0, 6.0]

    Args:
        choices: of each image by expert ``(n, E)``, window by window.
        shares: which share of an expert's choices a rank computes ``(E, N)``.
        starts: the first image of each window ``(W,)``.
    """
    loads = np.add.reduceat(choices, starts, axis=0, dtype=np.int64) @ shares
    busiest: Array = np.append(loads.sum(0).max(), loads.max(1))
    # Copies share choices by fractions: sums in another order must not differ in their last bits.
    return np.round(busiest, 6)
