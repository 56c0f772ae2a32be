"""Values and intervals of many images, block by block: the delta method in the place of resamples.

Two passes over the blocks. The first adds up the totals, which every value follows from; the second computes
each image's influence on the value, and the sum of their squares is the variance. An image leaves nothing behind
but that one number, and only if differences between checkpoints may be computed.

Sources: delta method and infinitesimal jackknife, Efron 1982; multipliers of the influences in the place of resamples,
Chernozhukov, Chetverikov and Kato 2013; random signs as multipliers, Deng and Zhang 2020.

Axes: R multipliers, n images, U units (the images themselves, unless they were sampled in groups).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.bootstrap import NUM_RESAMPLES, Replicates, with_bounds, with_contributions
from moeprobe.metrics.stats.carriers import Tail
from moeprobe.metrics.stats.statistic import (
    Additive,
    Array,
    Statistic,
    Totals,
    add,
    counted_trials,
    error_of,
    flag_of,
    is_additive,
    is_bounded,
    is_carried,
    standard_error,
)
from moeprobe.metrics.stats.units import Units
from moeprobe.runtime.seeds import generator

if TYPE_CHECKING:
    from moeprobe.metrics.base import Columns
    from moeprobe.metrics.declaration import Estimator, NumberName

# The flag of a number whose noise is computed over images, where units were sampled.
OF_IMAGES = "of_images"
# Images up to which intervals are those of resamples.
LARGEST = 2000
# Largest piece that glibc's allocator learns from, but for its header.
_HELD_BYTES = 2**25 - 2**16
# Images whose multipliers are drawn at a time.
_DRAWN = 1000

Estimators = Callable[["Columns"], Sequence["Estimator"]]


@dataclass
class _Sum:
    """One number as the first pass knows it."""

    estimator: Estimator
    totals: Totals
    binary: bool


def linearize(
    blocks: Callable[[], Iterable[tuple[slice, Columns]]],
    num_images: int,
    estimators: Estimators,
    *,
    keep: bool = True,
    units: Units | None = None,
) -> tuple[dict[NumberName, Replicates], set[NumberName]]:
    """Return what each number of some images comes to, and the names of those that cannot be added up block by block.

    Args:
        blocks: yields the images' columns in blocks, each with its place among the n images; called twice.
        num_images: n.
        estimators: what the columns of a block allow to be said.
        keep: whether each unit's influence is kept, for a difference between checkpoints.
        units: of the n images, in the order of the blocks; None = they are the images.
    """
    _hold_memory()
    units = Units(None, num_images) if units is None else units
    sums, not_additive = _add_up(blocks, estimators)
    points = {name: _value(number_sum) for name, number_sum in sums.items()}
    # Single experts are not compared between checkpoints, so only other numbers keep their influences.
    compared = {name for name in sums if keep and name.expert is None}
    parts = {name: _Influences(units, keep=name in compared) for name in sums}
    for rows, columns in blocks():
        for estimator in estimators(columns):
            name, statistic = estimator.key, estimator.statistic
            # The first pass kept those alone that are additive in every block.
            if name not in sums or not is_additive(statistic):
                continue
            # With totals over all images, each block's influences are those of the whole sample.
            totals = sums[name].totals
            parts[name].add(
                rows,
                statistic.influence(totals),
                statistic.contributions(totals) if is_carried(statistic) else None,
                _trials_of(estimator, totals),
            )
    numbers = {}
    for name, number_sum in sums.items():
        part, statistic = parts[name], number_sum.estimator.statistic
        # A number between images needs two of them.
        alone = number_sum.estimator.between_images and part.num_images <= 1
        number = 0 if alone else part.num_images
        error = error_of(part.squares, number)
        numbers[name] = with_bounds(
            Replicates(
                point=points[name],
                # No resamples: intervals follow from the error, and differences from the influences.
                values=np.empty(0),
                images=number,
                trials=0 if alone else part.trials,
                error=error,
                influence=part.influence if name in compared else None,
                undefined=flag_of(statistic),
                no_interval=_no_interval(statistic, units),
                contributions=part.contributions if name in compared else None,
                carriers=None if part.tail is None else part.tail.carriers(number),
            ),
            statistic,
            totals=number_sum.totals,
            error=error,
            binary=number_sum.binary and units.number is None,
        )
    return numbers, not_additive


class _Influences:
    """What the images of a run do to one number, block by block; of units, their images' sums.

    Args:
        units: of the images.
        keep: whether influences of images, which the number's error does not need, are kept.
    """

    def __init__(self, units: Units, *, keep: bool) -> None:
        self._units, self._keep = units, keep
        self._squares, self._images, self.trials = 0.0, 0, 0
        self._tail: Tail | None = None
        # Squares and tails are of whole units, whose images may lie in any block.
        self._by_unit = keep or units.number is not None
        self.influence = np.zeros(units.num_units if self._by_unit else 0)
        self.contributions: Array | None = None
        self._has_trials = np.zeros(0 if units.number is None else units.num_units, dtype=bool)

    def add(
        self, rows: slice, influence: Array, contributions: Array | None, trials: NDArray[np.generic]
    ) -> None:
        """Add the images of a block."""
        self.trials += int(trials.sum())
        self._add(self.influence, rows, influence)
        if contributions is not None and self._by_unit and self.contributions is None:
            self.contributions = np.zeros(self._units.num_units)
        if self._units.number is not None:
            units = self._units.take(rows)
            self._has_trials |= units.add_up(trials.astype(np.float64)) > 0
            if contributions is not None:
                self._add(self.contributions, rows, contributions)
            return
        self._images += int(np.count_nonzero(trials))
        self._squares += float(np.square(influence).sum())
        if contributions is not None:
            tail = Tail.of(contributions)
            self._tail = tail if self._tail is None else self._tail.plus(tail)
            self._add(self.contributions, rows, contributions)

    def _add(self, sums: Array | None, rows: slice, values: Array) -> None:
        if not self._by_unit or sums is None:
            return
        if self._units.number is None:
            sums[rows] = values
        else:
            sums += self._units.take(rows).add_up(values)

    @property
    def num_images(self) -> int:
        """Units with trials."""
        return self._images if self._units.number is None else int(self._has_trials.sum())

    @property
    def squares(self) -> float:
        """The sum of the units' squared influences."""
        return self._squares if self._units.number is None else float(np.square(self.influence).sum())

    @property
    def tail(self) -> Tail | None:
        """The units that carry most of a mean of losses; None for anything else."""
        if self._units.number is None or self.contributions is None:
            return self._tail
        return Tail.of(self.contributions)


def _no_interval(statistic: Statistic, units: Units) -> str:
    """Return the flag of a number whose noise is known over images alone, where units were sampled."""
    return OF_IMAGES if units.number is not None and getattr(statistic, "noise_of_images", False) else ""


def _hold_memory() -> None:
    """Let what one block frees be used by the next."""
    # Glibc returns pieces of memory to the system, which takes as long as the statistics themselves, unless a larger
    # piece was freed before. This one is never written to, so it takes no memory.
    np.empty(_HELD_BYTES, dtype=np.uint8)


def embed(replicates: Replicates, rows: NDArray[np.int64], num_images: int) -> Replicates:
    """Return what ``rows`` of n images alone said, as the influences of all of them: the others have none."""
    assert replicates.influence is not None

    def spread(values: Array) -> Array:
        of_all = np.zeros(num_images)
        of_all[rows] = values
        return of_all

    contributions = replicates.contributions
    return replace(
        replicates,
        influence=spread(replicates.influence),
        contributions=None if contributions is None else spread(contributions),
    )


def linearize_all(
    statistic: Statistic, trials: NDArray[np.generic], units: Units | None = None
) -> Replicates:
    """Return a number of images that are all here, linearized; ``trials`` ``(n,)``; ``units`` None = images."""
    units = Units(None, len(trials)) if units is None else units
    images = units.count(trials)
    point = float(statistic.evaluate(np.ones((len(trials), 1)))[0])
    influence = units.add_up(statistic.influence())
    error = standard_error(influence, images)
    replicates = Replicates(
        point,
        np.empty(0),
        images=images,
        trials=int(trials.sum()),
        error=error,
        influence=influence,
        undefined=flag_of(statistic),
        no_interval=_no_interval(statistic, units),
    )
    if is_carried(statistic) and not np.isnan(point):
        replicates = with_contributions(replicates, units.add_up(statistic.contributions()))
    binary = units.number is None and _is_binary(statistic)
    return with_bounds(replicates, statistic, totals=None, error=error, binary=binary)


def multiply_influences(
    differences: Sequence[Replicates], *, seed: int, num_multipliers: int = NUM_RESAMPLES
) -> list[Replicates]:
    """Return the differences with values in the place of resamples; their influences are dropped.

    A value is the point plus the sum of the images' influences, each with a random sign that belongs to the image and
    the value, the same for all differences: so differences vary together as they do over images.
    """
    all_influences = [member.influence for member in differences]
    num_images = max((len(influence) for influence in all_influences if influence is not None), default=0)
    values = np.zeros((len(all_influences), num_multipliers), dtype=np.float64)
    for block, start in enumerate(range(0, num_images, _DRAWN)):
        rng = generator(seed, "multipliers", draw=block)
        rows = min(_DRAWN, num_images - start)
        # One random bit for each sign: far fewer random bytes than by drawing numbers.
        random_bytes = np.frombuffer(rng.bytes(rows * -(-num_multipliers // 8)), dtype=np.uint8)
        bits = np.unpackbits(random_bytes.reshape(rows, -1), axis=1, count=num_multipliers)
        signs = 2 * bits.astype(np.float32) - 1
        influences = np.stack(
            [np.zeros(rows) if i is None else i[start : start + rows] for i in all_influences]
        )
        # Scaled, since float32 cannot represent the squares of small numbers.
        scale = np.maximum(np.abs(influences).max(1, keepdims=True), np.finfo(np.float64).tiny)
        values += (influences / scale).astype(np.float32) @ signs * scale
    return [
        replace(member, values=member.point + row, influence=None, contributions=None)
        if member.influence is not None
        else member
        for member, row in zip(differences, values, strict=True)
    ]


def _add_up(
    blocks: Callable[[], Iterable[tuple[slice, Columns]]], estimators: Estimators
) -> tuple[dict[NumberName, _Sum], set[NumberName]]:
    sums: dict[NumberName, _Sum] = {}
    not_additive: set[NumberName] = set()
    for _, columns in blocks():
        cached_sums: dict[tuple[int, int], Totals] = {}
        # Their ids are keys of ``cached_sums``, so none of them may be freed.
        alive = []
        for estimator in estimators(columns):
            name, statistic = estimator.key, estimator.statistic
            if name in not_additive:
                continue
            if not is_additive(statistic):
                not_additive.add(name)
                sums.pop(name, None)
                continue
            totals = statistic.totals()
            alive.append(totals)
            binary = _is_binary(statistic)
            if name in sums:
                earlier = sums[name]
                alive.append(earlier.totals)
                earlier.totals = add(earlier.totals, totals, cached_sums)
                earlier.binary &= binary
            else:
                sums[name] = _Sum(estimator, totals, binary)
    return sums, not_additive


def _value(number_sum: _Sum) -> float:
    statistic = number_sum.estimator.statistic
    assert isinstance(statistic, Additive)
    return statistic.value(number_sum.totals)


def _trials_of(estimator: Estimator, totals: Totals) -> NDArray[np.generic]:
    """Return the trials of a block's images ``(n,)``, which may follow from the totals."""
    of_totals = counted_trials(estimator.statistic, totals)
    return estimator.trials if of_totals is None else of_totals


def _is_binary(statistic: Statistic) -> bool:
    return is_bounded(statistic) and statistic.is_binary()
