"""From sums per image to the lines of a table: values, intervals, and paired differences between checkpoints."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from moeprobe.errors import UserError
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.declaration import KAPPA, NumberName
from moeprobe.metrics.stats.bootstrap import SCORE, Replicates, with_observations
from moeprobe.results.stored import SumsStore
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, frame, with_rows
from moeprobe.results.values import Analyses, CellValues, Evaluator
from moeprobe.routing.finite import COLUMN
from moeprobe.runtime import processes

# What a line is of, until the whole table is there; no column.
_REPLICATES = "replicates"
_NONE = np.empty(0)
# Cells that a design effect is read off, at least.
_FEWEST_CELLS = 2
# From the values of all cells of one layer and kind of tokens to more values, e.g. means: lists as those of a site.
Combine = Callable[[Sequence[Sequence[CellValues]]], Iterable[Sequence[CellValues]]]
# By the number of the cell in its site: lines of its values, and those of its differences.
_Lines = tuple[dict[int, list[dict[str, Any]]], dict[int, list[dict[str, Any]]]]


@dataclass(frozen=True)
class About:
    """What all lines of a run share, and what belongs to each checkpoint."""

    run: str
    dataset: str
    split: str
    seed: int
    aligned: bool
    train_seeds: Mapping[str, int | None]
    groups: Mapping[str, str]

    @classmethod
    def of_request(
        cls,
        request: Mapping[str, Any],
        *,
        run: str,
        aligned: bool,
        train_seeds: Mapping[str, int | None],
        groups: Mapping[str, str],
    ) -> Self:
        """Return it for a run, with the data and the seed of its request."""
        dataset, split, seed = request["data"], request["split"], request["seed"]
        return cls(run, dataset, split, seed, aligned, train_seeds, groups)


def summarize(
    images: SumsStore, *, analyses: Analyses, run_info: About, combine: Combine | None = None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the table of a run and, with two or more checkpoints, the paired differences from the first.

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
    # The interval of a mean needs the resamples of its members, as that of a difference does.
    resampled = paired or combine is not None
    value = Evaluator(
        analyses,
        aligned=run_info.aligned,
        seed=run_info.seed,
        paired=resampled,
        # Expert e of one model is no relative of expert e of another, so no difference follows.
        paired_experts=combine is not None,
    )
    sites = stored.sites()
    pieces = [[site] for site in sites] if combine is None else _by_layer(sites)

    def lines_of(number: int) -> tuple[list[_Lines], list[_Lines]]:
        valued = [[value(cell) for cell in site] for site in pieces[number]]
        combined = [] if combine is None else combine(valued)
        lines = [
            [lines_of_values(values, checkpoints[0], run_info) for values in part]
            for part in (valued, combined)
        ]
        return lines[0], lines[1]

    rows: dict[int, list[dict[str, Any]]] = {}
    differences: dict[int, list[dict[str, Any]]] = {}
    combined: list[_Lines] = []
    spread = processes.spread(lines_of, len(pieces), processes=stored.processes)
    for piece, (of_sites, of_combined) in zip(pieces, spread, strict=True):
        for site, (line_values, different) in zip(piece, of_sites, strict=True):
            rows |= {order[id(site[at])]: lines for at, lines in line_values.items()}
            differences |= {order[id(site[at])]: lines for at, lines in different.items()}
        combined += of_combined
    table = frame(_unseen([line for number in sorted(rows) for line in rows[number]]))
    table = with_rows(table, [line for part, _ in combined for lines in part.values() for line in lines])
    if not paired:
        return table, None
    comparison = frame(
        [line for number in sorted(differences) for line in differences[number]], comparison=True
    )
    combined_lines = [line for _, part in combined for lines in part.values() for line in lines]
    return table, with_rows(comparison, combined_lines, comparison=True)


def _by_layer(sites: Sequence[list[StoredCell]]) -> list[list[list[StoredCell]]]:
    """Return the sites of each layer and kind of tokens together."""
    by_layer: dict[tuple[str, str], list[list[StoredCell]]] = {}
    for site in sites:
        by_layer.setdefault((site[0].cell.layer, site[0].cell.tokens), []).append(site)
    return list(by_layer.values())


def _unseen(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a run; shares of 0 or 1 have intervals by the design effect that others of their metric have.

    The effect is the mean of at least two other cells, of the same kind of tokens, weighted by their counts:
    a match lends it to its kappa. It grows with the trials of an image, so pooled draws lend to pooled draws alone,
    and counts for one expert to other counts for one expert.
    """
    effects: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for line in lines:
        number = line[_REPLICATES]
        if np.isfinite(number.effect):
            weight = number.trials * min(number.point, 1 - number.point)
            effects.setdefault(_lender(line, line["metric"]), []).append((number.effect, weight))
    means = {
        lender: float(np.average([effect for effect, _ in cells], weights=[weight for _, weight in cells]))
        for lender, cells in effects.items()
        if len(cells) >= _FEWEST_CELLS
    }
    for line in lines:
        number, lender = line[_REPLICATES], _lender(line, line["metric"].removesuffix(KAPPA))
        if line["interval"] == SCORE and number.bounds is not None and lender in means:
            interval = with_observations(number, means[lender]).interval()
            line |= {"ci_low": interval.low, "ci_high": interval.high}
    return lines


def _lender(line: Mapping[str, Any], metric: str) -> tuple[Any, ...]:
    """Return what cells share that have one design effect."""
    return metric, line["tokens"], line["draw"] is None, line["expert"] is None


def lines_of_values(valued: Sequence[CellValues], reference: str, run_info: About) -> _Lines:
    """Return the lines of the values of one site, one of each checkpoint, and of their differences from ``reference``.

    Raises:
        UserError: two are of different images.
    """
    rows = {
        at: [
            row(run_info, values.checkpoint, values.cell, name, replicates, not_finite=values.not_finite)
            | {_REPLICATES: replace(replicates, values=_NONE, influence=None, contributions=None)}
            for name, replicates in values.numbers.items()
        ]
        for at, values in enumerate(valued)
    }
    first = next((values for values in valued if values.checkpoint == reference), None)
    if first is None:
        return rows, {}
    return rows, {
        at: _from(first, values, run_info) for at, values in enumerate(valued) if values is not first
    }


def _from(reference: CellValues, values: CellValues, run_info: About) -> list[dict[str, Any]]:
    """Return the lines of the differences between a cell and the reference's cell."""
    if values.cell.view in FLOORS:
        return []  # arithmetic, not routing
    if values.image_ids != reference.image_ids:
        raise UserError(
            f"{values.checkpoint} and {reference.checkpoint} were probed on different images, so that no difference "
            "is paired; probe both on the same (leave out what one of them cannot read)."
        )
    return [
        row(
            run_info,
            values.checkpoint,
            values.cell,
            name,
            replicates.minus(reference.numbers[name]),
            not_finite=values.not_finite or reference.not_finite,
        )
        | {"reference": reference.checkpoint}
        for name, replicates in values.numbers.items()
        # Expert e of one model is no relative of expert e of another.
        if name in reference.numbers and name.expert is None
    ]


def row(
    run_info: About,
    checkpoint: str,
    cell: Cell,
    name: NumberName,
    replicates: Replicates,
    *,
    not_finite: bool = False,
) -> dict[str, Any]:
    """Return the line of one value (or difference), by the names of ``columns.COLUMNS``."""
    interval = replicates.interval()
    return {
        "run": run_info.run,
        "checkpoint": checkpoint,
        "group": run_info.groups.get(checkpoint, ""),
        "train_seed": run_info.train_seeds.get(checkpoint),
        "dataset": run_info.dataset,
        "split": run_info.split,
        "layer": cell.layer,
        "router": cell.router,
        "top_k": cell.top_k or None,
        "view": cell.view,
        "severity": None if np.isnan(cell.severity) else cell.severity,
        "draw": cell.draw or None,
        "tokens": cell.tokens,
        "metric": name.metric,
        "null": name.null,
        "expert": name.expert,
        "expert_b": name.expert_b,
        "value": interval.value,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "interval": interval.method,
        "images": replicates.images,
        "trials": replicates.trials,
        "seed": run_info.seed,
        # Above all others: what else there is to say is said of the images that are left.
        "flag": COLUMN if not_finite else interval.flag,
        "carriers": interval.carriers,
    }
