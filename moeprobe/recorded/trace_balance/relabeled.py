"""What the imbalance of ranks is where experts are relabeled at random within each request.

Axes: n requests, E experts, W windows, L layers, N ranks, D relabelings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.relabeled_ranks import OF_RANKS, OF_WINDOWS, RelabeledMetrics
from moeprobe.metrics.stats.permutations import compare_with
from moeprobe.metrics.stats.rank_load import busiest_ranks, relabelings
from moeprobe.metrics.stats.statistic import Array, Integers
from moeprobe.recordings.placement import Placement


@dataclass(frozen=True)
class JudgedPlacement:
    """A placement and the requests that it is judged by.

    Attributes:
        name: in the column ``view``.
        placement: of the experts of each layer.
        start: the first of the requests, which go up to the last one.
        window: of each of them.
    """

    name: str
    placement: Placement
    start: int
    window: NDArray[np.int64]

    @cached_property
    def windows(self) -> tuple[Integers, Integers]:
        """The windows of the requests and the first request of each, ``(W,)``."""
        windows, starts = np.unique(self.window, return_index=True)
        return windows, starts


@dataclass(frozen=True)
class RelabeledRow:
    """The numbers of one imbalance.

    Attributes:
        layer: empty = all layers together.
        window: counted from 1; None = all windows.
        numbers: by metric, each with its range; NaN where it has none.
    """

    layer: str
    window: int | None
    numbers: Mapping[str, tuple[float, float, float]]


def relabeled_loads(
    choices: Mapping[str, NDArray[np.integer[Any]]], judged: Sequence[JudgedPlacement]
) -> dict[str, Array]:
    """Return the busiest ranks' loads ``(1 + D, L, 1 + W)`` for each judged placement, by its name.

    The observed ones come first; of a layer first those of all windows together. Mostly there are few requests, and
    at most ``linearized.LARGEST``.

    Args:
        choices: of each request by expert ``(n, E)``, by layer.
        judged: the placements.
    """
    draws: dict[str, list[list[Array]]] = {placement.name: [] for placement in judged}

    def add(counts_of: Mapping[str, NDArray[np.integer[Any]]]) -> None:
        for placement in judged:
            _, starts = placement.windows
            draws[placement.name].append(
                [
                    busiest_ranks(counts[placement.start :], placement.placement.shares[layer], starts)
                    for layer, counts in counts_of.items()
                ]
            )

    add(choices)
    num_requests = len(next(iter(choices.values())))
    for order in relabelings(num_requests, (counts.shape[1] for counts in choices.values())):
        add(
            {
                layer: np.take_along_axis(counts, order[counts.shape[1]], axis=1)
                for layer, counts in choices.items()
            }
        )
    return {name: np.array(of_draws) for name, of_draws in draws.items()}


def relabeled_rows(
    choices: Mapping[str, NDArray[np.integer[Any]]],
    judged: JudgedPlacement,
    busiest: Array,
    *,
    by_window: bool,
) -> Iterator[RelabeledRow]:
    """Yield the numbers of a judged placement: of each layer, then of all, then of all in each window.

    Args:
        choices: of each request by expert ``(n, E)``, by layer.
        judged: the placement.
        busiest: its loads, from ``relabeled_loads``.
        by_window: whether each window has numbers of its own.
    """
    windows, starts = judged.windows
    ranks = judged.placement.num_ranks
    totals = np.stack([counts[judged.start :].sum(1, dtype=np.int64) for counts in choices.values()])
    means = np.add.reduceat(totals, starts, axis=1) / ranks  # (L, W): relabeling changes no total
    by_layer = [(layer, busiest[:, [number]], means[[number]]) for number, layer in enumerate(choices)]
    for layer, of_layers, layer_means in [*by_layer, ("", busiest, means)]:
        loads, mean = of_layers.sum(1), layer_means.sum()
        if mean:
            yield RelabeledRow(
                layer,
                None,
                _numbers(OF_RANKS, loads[:, 0] / mean)
                | (_numbers(OF_WINDOWS, loads[:, 1:].sum(1) / mean) if len(windows) > 1 else {}),
            )
    for number, window in enumerate(windows.tolist() if by_window else ()):
        mean = means[:, number].sum()
        if mean:
            yield RelabeledRow("", window + 1, _numbers(OF_RANKS, busiest[:, :, 1 + number].sum(1) / mean))


def _numbers(metrics: RelabeledMetrics, imbalance: Array) -> dict[str, tuple[float, float, float]]:
    """Return the numbers of an imbalance, observed and then relabeled ``(1 + D,)``."""
    observed, nothing = float(imbalance[0]), (np.nan, np.nan)
    permuted = compare_with(imbalance[1:], observed)
    return {
        metrics.relabeled.name: (permuted.mean, permuted.low, permuted.high),
        metrics.ratio.name: (observed / permuted.mean, *nothing),
        metrics.p.name: (permuted.p, *nothing),
    }
