"""From the sums per image of one cell to all numbers that follow, each with what its interval needs.

Up to ``linearized.LARGEST`` images everything is resampled, all of them at hand. For more the cell is read block by
block, and intervals are linearized. What cannot be added up block by block is then computed from ``LARGEST`` of the
images, the same for all checkpoints; its denominators say so.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Analysis, Columns, SharedColumns
from moeprobe.metrics.declaration import Estimator, NumberName
from moeprobe.metrics.stats import linearized
from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.metrics.stats.statistic import ImageCache, is_linear
from moeprobe.metrics.stats.units import Units
from moeprobe.metrics.token_kinds import EXPERTS
from moeprobe.results.stored_cell import Arrays, StoredCell, in_order
from moeprobe.results.sums import Cell
from moeprobe.routing.finite import COLUMN
from moeprobe.runtime.seeds import generator

Analyses = Sequence[Analysis]


@dataclass(frozen=True)
class CellValues:
    """One cell of one checkpoint.

    Attributes:
        checkpoint: its name.
        cell: what the numbers are about.
        image_ids: names of the images, in order.
        numbers: by (metric, null, experts).
        influences: each unit's influence on a number ``(U,)``, if requested; units are images unless named.
        not_finite: whether images were left out since their gates or scores are no numbers.
        num_experts: E of a layer; None for values of no layer.
        num_units: U, how many were sampled.
    """

    checkpoint: str
    cell: Cell
    image_ids: list[str]
    numbers: Mapping[NumberName, Replicates]
    influences: Mapping[NumberName, NDArray[np.float64]]
    not_finite: bool
    num_experts: int | None
    num_units: int


class Evaluator:
    """How cells are valued in one run.

    Args:
        analyses: what the sums are of.
        aligned: whether the view leaves the grid where it is.
        seed: of the resamples.
        influences: whether to compute each image's influence on a number.
        paired: whether differences between checkpoints are to follow; with many images they need influences.
        paired_experts: the same of numbers about single experts; None = as ``paired``.
        experts: whether numbers about single experts are wanted.
        largest: number of images up to which intervals come from resamples.
        unit_of: the sampled unit of each image by its name; None = the images themselves.
    """

    def __init__(
        self,
        analyses: Analyses,
        *,
        aligned: bool,
        seed: int,
        influences: bool = False,
        paired: bool = True,
        paired_experts: bool | None = None,
        experts: bool = True,
        largest: int = linearized.LARGEST,
        unit_of: Mapping[str, str] | None = None,
    ) -> None:
        self._analyses, self._aligned, self._seed = analyses, aligned, seed
        self._influences, self._experts, self._largest = influences, experts, largest
        self._unit_of = unit_of
        self._keep, self._paired = influences or paired, paired
        self._paired_experts = paired if paired_experts is None else paired_experts
        self._bootstraps: dict[Hashable, Bootstrap] = {}

    @classmethod
    def for_differences(
        cls, analyses: Analyses, *, aligned: bool, seed: int, unit_of: Mapping[str, str] | None
    ) -> "Evaluator":
        """Return the evaluator for cells that are subtracted from other models' cells.

        Numbers about single experts are left out: expert e of one model is no relative of expert e of another.
        """
        return cls(analyses, aligned=aligned, seed=seed, influences=True, experts=False, unit_of=unit_of)

    def __call__(self, stored: StoredCell) -> CellValues:
        """Return the numbers of one cell."""
        resampled = stored.num_images <= self._largest
        return self._resample(stored) if resampled else self._linearize(stored)

    def _resample(self, stored: StoredCell) -> CellValues:
        names, columns = stored.load_all()
        units = Units.of(names, self._unit_of)
        all_estimators = self._estimators({**columns, **units.columns()})
        # Without units, all cells of as many images share their resamples.
        key = len(names) if units.number is None else tuple(units.number.tolist())
        if key not in self._bootstraps:
            self._bootstraps[key] = Bootstrap(len(names), seed=self._seed, units=units)
        bootstrap = self._bootstraps[key]
        resampled = [estimator for estimator in all_estimators if not is_linear(estimator.statistic)]
        values: dict[NumberName, Replicates] = {}
        for is_expert in (False, True):
            group = [estimator for estimator in resampled if (estimator.expert is not None) == is_expert]
            requests = [(estimator.statistic, estimator.used_trials) for estimator in group]
            replicates = bootstrap.replicate(
                requests, paired=self._paired_experts if is_expert else self._paired
            )
            values |= zip([estimator.key for estimator in group], replicates, strict=True)
        numbers = [
            linearized.linearize_all(estimator.statistic, estimator.used_trials, units)
            if is_linear(estimator.statistic)
            else values[estimator.key]
            for estimator in all_estimators
        ]
        influences = (
            {
                estimator.key: units.add_up(estimator.statistic.influence())
                for estimator in all_estimators
                if self._paired_experts or estimator.expert is None
            }
            if self._influences
            else {}
        )
        return CellValues(
            stored.checkpoint,
            stored.cell,
            names,
            dict(zip([estimator.key for estimator in all_estimators], numbers, strict=True)),
            influences,
            not_finite(columns),
            _num_experts(columns, self._analyses),
            units.num_units,
        )

    def _linearize(self, stored: StoredCell) -> CellValues:
        names = stored.names()
        order = in_order(names)
        flags: dict[str, bool | int | None] = {"left out": False, "experts": None}
        sample = _Sample(order, self._largest, seed=self._seed)
        # By the first row of each block, since blocks are read twice.
        image_caches: dict[int, dict[Hashable, ImageCache]] = {}

        def blocks() -> Iterator[tuple[slice, Columns]]:
            for rows, columns in stored.blocks():
                sample.gather(rows, columns)
                flags["left out"] = flags["left out"] or not_finite(columns)
                flags["experts"] = flags["experts"] or _num_experts(columns, self._analyses)
                yield rows, SharedColumns(columns, image_caches.setdefault(rows.start, {}))

        units = Units.of(names, self._unit_of)
        additive, remaining = linearized.linearize(
            blocks, len(names), self._estimators, keep=self._keep, units=units
        )
        numbers = dict(additive)
        # Units are in the order of their names already.
        if units.number is None:
            numbers = {name: _reorder(replicates, order) for name, replicates in additive.items()}
        if remaining:
            numbers |= self._of_sample(sample, remaining, None if units.number is None else units.take(order))
        return CellValues(
            stored.checkpoint,
            stored.cell,
            [names[row] for row in order],
            numbers,
            {
                name: replicates.influence
                for name, replicates in numbers.items()
                if replicates.influence is not None
            },
            bool(flags["left out"]),
            None if flags["experts"] is None else int(flags["experts"]),
            units.num_units,
        )

    def _of_sample(
        self, sample: "_Sample", names: set[NumberName], units: Units | None
    ) -> dict[NumberName, Replicates]:
        """Return numbers of the sample alone; ``units`` of all images in order, None = they are the units."""
        sample_units = None if units is None else units.take(sample.indices)
        columns = sample.columns() | ({} if sample_units is None else sample_units.columns())
        numbers = {
            estimator.key: linearized.linearize_all(estimator.statistic, estimator.used_trials, sample_units)
            for estimator in self._estimators(columns)
            if estimator.key in names
        }
        if units is not None:
            return numbers
        return {
            name: linearized.embed(number, sample.indices, sample.num_images)
            for name, number in numbers.items()
        }

    def _estimators(self, columns: Columns) -> list[Estimator]:
        all_estimators = estimators(columns, self._analyses, aligned=self._aligned)
        return (
            all_estimators
            if self._experts
            else [estimator for estimator in all_estimators if estimator.expert is None]
        )


def _reorder(replicates: Replicates, order: NDArray[np.int64]) -> Replicates:
    """Return a number with its values per image in another order."""
    influence, contributions = (
        None if values is None else values[order]
        for values in (replicates.influence, replicates.contributions)
    )
    return replace(replicates, influence=influence, contributions=contributions)


class _Sample:
    """The largest number of images that is resampled, chosen among their names and gathered while blocks are read.

    Args:
        order: rows of the images by their names ``(n,)``.
        size: how many are chosen, if there are as many.
        seed: of the choice.

    Attributes:
        indices: theirs among the names in order.
        num_images: n.
    """

    def __init__(self, order: NDArray[np.int64], size: int, *, seed: int) -> None:
        self.num_images = len(order)
        self.indices = np.sort(generator(seed, "some").choice(len(order), size, replace=False))
        self._rank = np.full(len(order), -1)
        self._rank[order[self.indices]] = np.arange(size)
        # By the first row of each block, since blocks are read twice.
        self._parts: dict[int, tuple[NDArray[np.int64], Arrays]] = {}

    def gather(self, rows: slice, columns: Arrays) -> None:
        """Keep the chosen images of a block."""
        if rows.start not in self._parts:
            rank = self._rank[rows]
            sample_rows = np.flatnonzero(rank >= 0)
            self._parts[rows.start] = (
                rank[sample_rows],
                {name: values[sample_rows] for name, values in columns.items()},
            )

    def columns(self) -> Arrays:
        """Return the columns of the chosen images, in order."""
        order = np.argsort(np.concatenate([rank for rank, _ in self._parts.values()]))
        parts = [columns for _, columns in self._parts.values()]
        return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def estimators(columns: Columns, analyses: Analyses, *, aligned: bool) -> list[Estimator]:
    """Return all that the analyses say of the columns of one cell."""
    if not isinstance(columns, SharedColumns):
        columns = SharedColumns(columns)
    return [
        metric
        for analysis in analyses
        if analysis.signature in columns
        for metric in analysis.estimators(columns, aligned=aligned)
    ]


def not_finite(columns: Columns) -> bool:
    """Whether images of a cell were left out since their gates or scores are no numbers.

    Runs from before that was looked at hold such sums themselves: theirs are not to be trusted either.
    """
    left_out = columns.get(COLUMN)
    if left_out is not None and left_out.any():
        return True
    return not all(np.isfinite(values).all() for values in columns.values() if values.dtype.kind == "f")


def _num_experts(columns: Columns, analyses: Analyses) -> int | None:
    """Return E of a layer, by sums with an entry per expert where no column says it; None for other cells."""
    if EXPERTS in columns:
        return int(columns[EXPERTS][0])
    names = (analysis.per_expert for analysis in analyses)
    return next((columns[name].shape[1] for name in names if name is not None and name in columns), None)
