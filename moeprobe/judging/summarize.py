"""From the sums per image of a run to its two tables: values with intervals, and judged differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.judging.differences import Compared, Judging, compare_values
from moeprobe.metrics.base import trial_lists
from moeprobe.results.stored import SumsStore
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.summaries import REPLICATES, About, row, with_unseen
from moeprobe.results.tables import FLOORS, frame, with_rows
from moeprobe.results.values import Analyses, CellValues, Evaluator
from moeprobe.runtime import processes

_NONE = np.empty(0)
# From the values of all cells of one layer and kind of tokens to more values, e.g. means: lists as those of a site.
Combine = Callable[[Sequence[Sequence[CellValues]]], Iterable[Sequence[CellValues]]]
# By the number of the cell in its site: lines of its values, and its differences.
_Lines = tuple[dict[int, list[dict[str, Any]]], dict[int, list[Compared]]]


def summarize(
    images: SumsStore, *, analyses: Analyses, run_info: About, combine: Combine | None = None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the table of a run, and the judged differences from its first checkpoint; None where there are none.

    Where there are random draws, all of them together come first, then each by itself. What ``combine`` makes of the
    values comes last.

    Everything is taken in the order of the image names and with resamples that belong to (seed, resample), so the
    same sums give the same bytes. One site (layer, view, severity, draw, tokens) is held at a time, in each of
    ``SumsStore.processes``; with ``combine`` all sites of a layer and kind of tokens are.
    """
    stored = images.pool_draws(lists=trial_lists(analyses), keep_single=True)
    order = {id(cell): number for number, cell in enumerate(stored)}
    checkpoints = list(dict.fromkeys(cell.checkpoint for cell in stored))
    paired = len(checkpoints) > 1
    value = Evaluator(
        analyses,
        aligned=run_info.aligned,
        seed=run_info.seed,
        # A mean over perturbations as a sample takes them of single checkpoints, too.
        influences=paired or combine is not None,
        # The interval of a mean needs the resamples of its members, as that of a difference does.
        paired=paired or combine is not None,
        # Expert e of one model is no relative of expert e of another, so no difference follows.
        paired_experts=combine is not None,
        unit_of=run_info.unit_of,
    )
    sites = stored.sites()
    pieces = [[site] for site in sites] if combine is None else group_by_layer(sites)

    def lines_of(number: int) -> tuple[list[_Lines], list[_Lines]]:
        valued = [[value(cell) for cell in site] for site in pieces[number]]
        means = [] if combine is None else combine(valued)
        return (
            [_lines(values, checkpoints[0], run_info) for values in valued],
            [_lines(values, checkpoints[0], run_info, combined=True) for values in means],
        )

    rows: dict[int, list[dict[str, Any]]] = {}
    means: list[dict[str, Any]] = []
    judging, cell_numbers = Judging(), list[int]()
    spread = processes.spread(lines_of, len(pieces), processes=stored.processes)
    for piece, (of_sites, of_means) in zip(pieces, spread, strict=True):
        for site, (lines, differences) in zip(piece, of_sites, strict=True):
            rows |= {order[id(site[at])]: of_cell for at, of_cell in lines.items()}
            for at, compared in differences.items():
                judging.add(compared)
                cell_numbers += [order[id(site[at])]] * len(compared)
        for lines, differences in of_means:
            means += [line for of_cell in lines.values() for line in of_cell]
            for compared in differences.values():
                judging.add(compared)
                cell_numbers += [len(order)] * len(compared)
    table = frame(with_unseen([line for number in sorted(rows) for line in rows[number]]))
    table = with_rows(table, means)
    judged = judging.rows()
    if not judged:
        return table, None
    return table, frame([judged[at] for at in np.argsort(cell_numbers, kind="stable")], judged=True)


def group_by_layer(sites: Sequence[list[StoredCell]]) -> list[list[list[StoredCell]]]:
    """Return the sites of each layer and kind of tokens together."""
    by_layer: dict[tuple[str, str], list[list[StoredCell]]] = {}
    for site in sites:
        by_layer.setdefault((site[0].cell.layer, site[0].cell.tokens), []).append(site)
    return list(by_layer.values())


def _lines(
    valued: Sequence[CellValues], reference: str, run_info: About, *, combined: bool = False
) -> _Lines:
    """Return the lines of the values of one site, one of each checkpoint, and their differences from ``reference``.

    Raises:
        UserError: two are of different images.
    """
    rows = {
        at: [
            row(run_info, values.checkpoint, values.cell, name, replicates, not_finite=values.not_finite)
            | {REPLICATES: replace(replicates, values=_NONE, influence=None, contributions=None)}
            for name, replicates in values.numbers.items()
        ]
        for at, values in enumerate(valued)
    }
    first = next((values for values in valued if values.checkpoint == reference), None)
    # Floors are arithmetic, not routing.
    if first is None or first.cell.view in FLOORS:
        return rows, {}
    return rows, {
        at: compare_values(values, first, run_info, combined=combined)
        for at, values in enumerate(valued)
        if values is not first
    }
