"""What inputs bring to experts, and the lines of a table that follow from all layers together.

Axes: n inputs (images, texts, requests), E experts of a layer, X experts of all layers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moeprobe.errors import UserError, option
from moeprobe.metrics.analyses import expert_coverage as coverage
from moeprobe.metrics.declaration import Metric, NumberName
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.statistic import Integers
from moeprobe.probes.coverage.collect import (
    ENDS,
    Counts,
    EvenRouter,
    Orders,
    greedy_subset,
    grid_of,
    range_of,
)
from moeprobe.results import summaries
from moeprobe.results.columns import EXACT
from moeprobe.results.stored_cell import DamagedSumsError, StoredCell, in_order
from moeprobe.results.sums import Cell
from moeprobe.runtime.files import atomic_file, is_there
from moeprobe.runtime.object_stores import check_local

# Experts with too few tokens that a note lists; the table has all.
_LISTED = 20


@dataclass(frozen=True)
class Uses:
    """What the inputs of one data set, or recording, bring to the experts of a model.

    Attributes:
        names: of the inputs ``(n,)``.
        tokens: ``(n,)``.
        counts: ``(n, X)`` tokens of an input that each expert gets, in few bits: see ``no_counts``.
        layers: which of the experts are of a layer.
        cell: of the lines about all layers.
        top_ks: experts that a token chooses, by layer.
    """

    names: list[str]
    tokens: Integers
    counts: Counts
    layers: Mapping[str, slice]
    cell: Cell
    top_ks: Mapping[str, int]

    @classmethod
    def of_cells(cls, cells: Sequence[StoredCell]) -> "Uses":
        """Return those of a model's sums, of which each cell is a layer of the same inputs.

        Raises:
            DamagedSumsError: an expert has more tokens than its input.
        """
        names = cells[0].names()
        order = in_order(names)
        tokens = np.concatenate([columns["covered_tokens"] for _, columns in cells[0].blocks()])
        tokens = tokens[order].astype(np.int64)
        widths = {
            stored.cell.layer: next(columns for _, columns in stored.blocks())["covered_uses"].shape[1]
            for stored in cells
        }
        layers = slices_of(widths)
        counts = no_counts(tokens, widths)
        for stored in cells:
            # Inputs may have come in another order in each cell.
            row = np.argsort(in_order(stored.names()))
            for rows, columns in stored.blocks():
                uses = columns["covered_uses"]
                if (uses > tokens[row[rows], None]).any() or uses.min(initial=0) < 0:
                    raise DamagedSumsError(
                        f"An expert of {stored.cell.layer} has more tokens than its input; run the probe again with "
                        f"{option('overwrite')}."
                    )
                counts[row[rows], layers[stored.cell.layer]] = uses
        first = replace(cells[0].cell, layer="")
        top_ks = {stored.cell.layer: stored.cell.top_k for stored in cells}
        return cls([names[index] for index in order], tokens, counts, layers, first, top_ks)

    @property
    def by_layer(self) -> Iterator[tuple[str, Counts]]:
        """Yield each layer and its part of the counts ``(n, E)``."""
        for layer, part in self.layers.items():
            yield layer, self.counts[:, part]

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return int(self.tokens.sum())

    def by_unit(self, unit_of: Mapping[str, str] | None) -> "Uses":
        """Return what whole units bring; None = the inputs themselves are the units."""
        if unit_of is None:
            return self
        units, row = np.unique([unit_of[name] for name in self.names], return_inverse=True)
        tokens = np.zeros(len(units), np.int64)
        np.add.at(tokens, row, self.tokens)
        counts = no_counts(tokens, {name: values.shape[1] for name, values in self.by_layer})
        order = np.argsort(row, kind="stable")
        starts = np.searchsorted(row[order], np.arange(len(units)))
        for part in self.layers.values():
            counts[:, part] = np.add.reduceat(self.counts[order, part], starts, axis=0, dtype=np.int64)
        return replace(self, names=units.tolist(), tokens=tokens, counts=counts)

    def subset(self, need: int) -> list[int]:
        """Return a small subset of the inputs in which each expert has enough tokens that has them in all."""
        return greedy_subset(self.counts, self.tokens, need)

    def even_router(self, need: int) -> EvenRouter:
        """Return an even router of the same layers."""
        shapes = tuple((values.shape[1], self.top_ks[name]) for name, values in self.by_layer)
        return EvenRouter(shapes, need)

    def lacking(self, need: int) -> str:
        """Return the experts that have fewest of too few tokens, and how many they have; empty where all have."""
        lacking = sorted(
            (int(total), f"expert {expert} of {layer} has {total:,}")
            for layer, of_layer in self.by_layer
            for expert, total in enumerate(of_layer.sum(0).tolist())
            if total < need
        )
        num_unlisted = len(lacking) - _LISTED
        listed = [text for _, text in lacking[:_LISTED]]
        return ", ".join(
            [*listed, *([f"and {num_unlisted:,} more have too few"] if num_unlisted > 0 else [])]
        )


def slices_of(widths: Mapping[str, int]) -> dict[str, slice]:
    """Return which columns of ``Uses.counts`` are of each layer, by the number of its experts."""
    ends = np.cumsum(list(widths.values())).tolist()
    return {layer: slice(end - width, end) for (layer, width), end in zip(widths.items(), ends, strict=True)}


def no_counts(tokens: Integers, widths: Mapping[str, int]) -> Counts:
    """Return zeros ``(n, X)`` that can become the counts of inputs with so many ``tokens`` ``(n,)``.

    An expert gets a token at most once, so the longest input says how many bits are enough. Counts are most of the
    memory: inputs times experts.
    """
    kind = np.min_scalar_type(int(tokens.max(initial=0)))
    return np.zeros((len(tokens), sum(widths.values())), kind)


def lines_of(
    uses: Uses, subset: Sequence[int], *, need: int, least: int, checkpoint: str, info: summaries.About
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a table on all layers together.

    Args:
        uses: of the inputs.
        subset: inputs that are enough.
        need: tokens that are enough.
        least: tokens at which the curve is read, too, to compare it with others.
        checkpoint: what the table calls the model, or the recording.
        info: what all lines share.
    """
    units = uses.by_unit(info.unit_of)
    every, total = units.counts, uses.num_tokens

    def line(
        metric: Metric,
        values: tuple[float, float, float] | float,
        tokens: float = float("nan"),
        trials: int = total,
        interval: str = "permutations",
    ) -> dict[str, Any]:
        point, low, high = values if isinstance(values, tuple) else (values, np.nan, np.nan)
        number = Replicates(point, np.empty(0), images=len(units.names), trials=trials)
        row = summaries.row(
            info, checkpoint, replace(uses.cell, severity=tokens), NumberName(metric.name, ""), number
        )
        flag = "not_measurable" if np.isnan(point) else ""
        return row | {
            "ci_low": low,
            "ci_high": high,
            "interval": interval if low == low else "",
            "flag": flag,
        }

    orders = Orders.of(every, units.tokens, need, seed=info.seed)
    even = uses.even_router(need)
    grid = sorted({*grid_of(total), least})
    for tokens, shares in zip(grid, orders.covered(grid).T, strict=True):
        yield line(coverage.COVERED, range_of(shares), float(tokens))
        yield line(coverage.COVERED_EVEN, even.covered(tokens), float(tokens))
    num_below = int((every.sum(0) < need).sum())
    # In whole inputs: all orders reach every expert, or none does.
    nothing = (np.nan, np.nan, np.nan)
    yield line(coverage.TOKENS_NEEDED, nothing if num_below else range_of(orders.needed()))
    yield line(coverage.INPUTS_NEEDED, nothing if num_below else range_of(orders.inputs_needed()))
    median, low, high = (float(even.quantile(probability)) for probability in (0.5, *ENDS))
    yield line(coverage.TOKENS_NEEDED_EVEN, (median, low, high), interval=EXACT)
    yield line(coverage.BELOW, float(num_below))
    # The subset is of inputs, whatever the units are.
    yield line(coverage.SUBSET_TOKENS, float(uses.tokens[list(subset)].sum()))
    yield line(coverage.SUBSET_INPUTS, float(len(subset)), trials=len(uses.names))


def check_chooses(
    layer: str, source: str | Path, *, tokens_choose: bool, top_k: int, num_experts: int
) -> None:
    """Raise ``UserError`` where tokens of a layer do not choose some of several experts."""
    if not tokens_choose or not 0 < top_k < num_experts:
        raise UserError(
            f"In {layer} of {source} tokens do not choose some of several experts, so every expert gets its tokens "
            f"anyway; leave the layer out with {option('layers')}."
        )


def check_subset_file(path: Path | None, *, overwrite: bool) -> None:
    """Raise ``UserError`` where the file of the subset exists and is not to be replaced, or is not local."""
    if path is not None:
        check_local(path)
    if path is not None and is_there(path) and not overwrite:
        raise UserError(
            f"{path} exists; choose another name, or replace it with {option('overwrite', True)}."
        )


def write_subsets(path: Path, subsets: Sequence[tuple[Mapping[str, str], Uses, Sequence[int]]]) -> None:
    """Write the inputs of subsets as JSON lines: what each is of, its name and its tokens."""
    lines = [
        json.dumps({**source, "id": uses.names[row], "tokens": int(uses.tokens[row])})
        for source, uses, rows in subsets
        for row in rows
    ]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
