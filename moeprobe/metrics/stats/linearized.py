"""Values and intervals of many images, block by block: the delta method in the place of resamples.

Two passes over the blocks. The first adds up the totals, which every value follows from; the second computes
each image's influence on the value, and the sum of their squares is the variance. An image leaves nothing behind
but that one number, and only if differences between checkpoints may be computed.

Sources: delta method and infinitesimal jackknife, Efron 1982; multipliers of the influences in the place of resamples,
Chernozhukov, Chetverikov and Kato 2013; random signs as multipliers, Deng and Zhang 2020.

Axes: R multipliers, n images.
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
from moeprobe.runtime.seeds import generator

if TYPE_CHECKING:
    from moeprobe.metrics.base import Columns
    from moeprobe.metrics.declaration import Estimator, NumberName

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
) -> tuple[dict[NumberName, Replicates], set[NumberName]]:
    """Return what each number of some images comes to, and the names of those that cannot be added up block by block.

    Args:
        blocks: yields the images' columns in blocks, each with its place among the n images; called twice.
        num_images: n.
        estimators: what the columns of a block allow to be said.
        keep: whether each image's influence is kept, for a difference between checkpoints.
    """
    _hold_memory()
    sums, not_additive = _add_up(blocks, estimators)
    points = {name: _value(number_sum) for name, number_sum in sums.items()}
    # Single experts are not compared between checkpoints, so only other numbers keep their influences.
    influences = {name: np.zeros(num_images) for name in sums if keep and name.expert is None}
    tails: dict[NumberName, Tail] = {}
    contributions: dict[NumberName, Array] = {}
    squares = dict.fromkeys(sums, 0.0)
    images, trials = dict.fromkeys(sums, 0), dict.fromkeys(sums, 0)
    for rows, columns in blocks():
        for estimator in estimators(columns):
            name, statistic = estimator.key, estimator.statistic
            # The first pass kept those alone that are additive in every block.
            if name not in sums or not is_additive(statistic):
                continue
            # With totals over all images, each block's influences are those of the whole sample.
            influence = statistic.influence(sums[name].totals)
            squares[name] += float(np.square(influence).sum())
            if name in influences:
                influences[name][rows] = influence
            if is_carried(statistic):
                of_block = statistic.contributions(sums[name].totals)
                tail = Tail.of(of_block)
                tails[name] = tails[name].plus(tail) if name in tails else tail
                if name in influences:
                    contributions.setdefault(name, np.zeros(num_images))[rows] = of_block
            trials_of_images = _trials_of(estimator, sums[name].totals)
            images[name] += int(np.count_nonzero(trials_of_images))
            trials[name] += int(trials_of_images.sum())
    numbers = {}
    for name, number_sum in sums.items():
        # A number between images needs two of them.
        alone = number_sum.estimator.between_images and images[name] <= 1
        number = 0 if alone else images[name]
        error = error_of(squares[name], number)
        numbers[name] = with_bounds(
            Replicates(
                point=points[name],
                # No resamples: intervals follow from the error, and differences from the influences.
                values=np.empty(0),
                images=number,
                trials=0 if alone else trials[name],
                error=error,
                influence=influences.get(name),
                undefined=flag_of(number_sum.estimator.statistic),
                contributions=contributions.get(name),
                carriers=tails[name].carriers(number) if name in tails else None,
            ),
            number_sum.estimator.statistic,
            totals=number_sum.totals,
            error=error,
            binary=number_sum.binary,
        )
    return numbers, not_additive


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


def linearize_all(statistic: Statistic, trials: NDArray[np.generic]) -> Replicates:
    """Return a number of images that are all here, linearized; ``trials`` ``(n,)``."""
    images = int(np.count_nonzero(trials))
    point = float(statistic.evaluate(np.ones((len(trials), 1)))[0])
    influence = statistic.influence()
    error = standard_error(influence, images)
    replicates = Replicates(
        point,
        np.empty(0),
        images=images,
        trials=int(trials.sum()),
        error=error,
        influence=influence,
        undefined=flag_of(statistic),
    )
    if is_carried(statistic) and not np.isnan(point):
        replicates = with_contributions(replicates, statistic.contributions())
    return with_bounds(replicates, statistic, totals=None, error=error, binary=_is_binary(statistic))


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
