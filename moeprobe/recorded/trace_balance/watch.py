"""Whether the load of served traffic has moved, looked at again after each batch of requests.

The first batches are the baseline. Its first half names the usual hot experts, and its second half says which share of
the choices they get: an expert that was hot by chance is not so again. Batches since are compared with that share.

Axes: B batches, E experts, L layers, n batches since the baseline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.metrics.stats.always_valid import STRETCH, Watched, first_change, level_of_stretch, watch
from moeprobe.metrics.stats.hot_experts import num_hot
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.statistic import Array, divide
from moeprobe.metrics.watched_load import (
    BATCH_CORRELATION,
    CHANGED_SINCE,
    FIRST_CHANGED,
    RECENT_CHANGE,
    USUAL_CHANGE,
    USUAL_SHARE,
)
from moeprobe.results.sampled_units import read_units

# What the tables call the rows on batches.
VIEW = "batches"
_NOTHING = (np.nan, np.nan)


@dataclass(frozen=True)
class Batches:
    """Requests in batches that follow one another.

    Attributes:
        number: the batch of each independent request, from 0; of none where the last batch is not full.
        count: B.
        baseline: how many of them come before the change that is looked for.
        unit: what a batch is, e.g. "hour"; empty = so many requests.
    """

    number: Mapping[str, int]
    count: int
    baseline: int
    unit: str = ""

    @classmethod
    def of(
        cls, names: Sequence[str], *, every: int | None, periods: Path | None, baseline: int
    ) -> "Batches | None":
        """Return the batches of requests in their order; None where none were wanted.

        Raises:
            UserError: there are no batches after the baseline, or a request has no period.
        """
        if every is None and periods is None:
            return None
        unit = ""
        if periods is not None:
            units = read_units(periods).of(names, source=str(periods))
            unit = units.name
            order = {label: position for position, label in enumerate(dict.fromkeys(units.unit_of.values()))}
            number = {name: order[label] for name, label in units.unit_of.items()}
        else:
            assert every is not None
            full = len(names) // every * every
            number = {name: position // every for position, name in enumerate(names[:full])}
        count = max(number.values(), default=-1) + 1
        if count <= baseline:
            raise UserError(
                f"There are {count} full batches of requests and {baseline} of them are the baseline, so none is left "
                f"to watch; record more, or use a smaller {option('baseline')} or smaller batches."
            )
        return cls(number, count, baseline, unit)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many requests each batch has ``(B,)``."""
        return np.bincount([*self.number.values()], minlength=self.count)

    def add(
        self, counts: NDArray[np.int64], requests: Sequence[str], choices: NDArray[np.integer[Any]]
    ) -> None:
        """Add the choices of requests ``(r, E)`` to their batches ``(B, E)``."""
        number = np.array([self.number.get(name, -1) for name in requests])
        # Requests of the last batch, which is not full, are in none.
        np.add.at(counts, number[number >= 0], choices[number >= 0])


@dataclass(frozen=True)
class WatchedRow:
    """Numbers of one layer, or of all.

    Attributes:
        layer: empty = all layers together.
        batch: counted from 1 since the baseline; None = all of them.
        metric: which number.
        value: NaN where it has none, as its interval.
        ends: of its always-valid interval; NaN where it has none.
        behind: the batches that it is of, among all B.
    """

    layer: str
    batch: int | None
    metric: str
    value: float
    ends: tuple[float, float]
    behind: slice


def watched_rows(counts: Mapping[str, NDArray[np.int64]], baseline: int) -> Iterator[WatchedRow]:
    """Yield the numbers of all layers together, after each batch, and then of each layer after the last one.

    All layers together are one claim. The layers are another one, and share its level (Bonferroni).

    Args:
        counts: choices of the experts in each batch ``(B, E)``, by layer.
        baseline: number of batches that it has.
    """
    hits = {layer: _usual_choices(of_layer, baseline) for layer, of_layer in counts.items()}
    totals = {layer: of_layer.sum(1) for layer, of_layer in counts.items()}
    level = 1 - CONFIDENCE
    together = np.sum([*hits.values()], axis=0), np.sum([*totals.values()], axis=0)
    yield from _rows("", *together, baseline, level, by_batch=True)
    for layer in counts if len(counts) > 1 else ():
        yield from _rows(layer, hits[layer], totals[layer], baseline, level / len(counts), by_batch=False)


def _usual_choices(counts: NDArray[np.int64], baseline: int) -> NDArray[np.int64]:
    """Return how many choices go to the usual hot experts in each batch ``(B,)``."""
    order = np.argsort(-counts[: baseline // 2].sum(0), kind="stable")
    usual: NDArray[np.int64] = counts[:, order[: num_hot(counts.shape[1])]].sum(1)
    return usual


def _rows(
    layer: str,
    hits: NDArray[np.int64],
    totals: NDArray[np.int64],
    baseline: int,
    level: float,
    *,
    by_batch: bool,
) -> Iterator[WatchedRow]:
    shares: Array = divide(hits, totals)
    if np.isnan(shares).any():  # a batch without a choice in this layer
        return
    half, grain = baseline // 2, 1 / float(totals.mean())
    usual, later = shares[half:baseline], shares[baseline:]
    watched = watch(usual, later, level=level_of_stretch(0, level), grain=grain)
    for batch in range(len(later)) if by_batch else ():
        behind = slice(baseline, baseline + batch + 1)
        yield WatchedRow(
            layer, batch + 1, USUAL_CHANGE.name, float(watched.change[batch]), _ends(watched, batch), behind
        )
    since = slice(baseline, None)
    yield WatchedRow(layer, None, USUAL_SHARE.name, float(usual.mean()), _NOTHING, slice(half, baseline))
    yield WatchedRow(layer, None, USUAL_CHANGE.name, float(watched.change[-1]), _ends(watched), since)
    changed = first_change(usual, later, level=level, grain=grain)
    at, start = int(changed.at), int(changed.start)
    if at:
        stretch = slice(baseline + start, None)
        # A change makes batches before and after it alike, so its own stretch says how alike they are.
        watched = watch(usual, shares[stretch], level=level_of_stretch(start // STRETCH, level), grain=grain)
        yield WatchedRow(layer, None, FIRST_CHANGED.name, float(at), _NOTHING, slice(baseline, baseline + at))
        yield WatchedRow(layer, None, CHANGED_SINCE.name, float(start + 1), _NOTHING, stretch)
        yield WatchedRow(layer, None, RECENT_CHANGE.name, float(watched.change[-1]), _ends(watched), stretch)
    yield WatchedRow(
        layer, None, BATCH_CORRELATION.name, float(watched.correlation[-1]), _NOTHING, slice(half, None)
    )


def _ends(watched: Watched, batch: int = -1) -> tuple[float, float]:
    change, reach = float(watched.change[batch]), float(watched.reach[batch])
    return (change - reach, change + reach) if np.isfinite(reach) else _NOTHING
