"""From sums per image to the lines of a table: values, intervals, and paired differences between checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.stats.linearized import Name
from moeprobe.metrics.stats.replicates import Replicates
from moeprobe.results.stored import Stored
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, frame
from moeprobe.results.values import Analyses, Valuation, Values
from moeprobe.routing.finite import COLUMN
from moeprobe.runtime import processes

# By the number of the cell in its place: lines of its values, and those of its differences.
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


def summarize(
    images: Stored, *, analyses: Analyses, about: About
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the table of a run and, with two or more checkpoints, the paired differences from the first.

    Where there are random draws, all of them together come first, then each by itself.

    Everything is taken in the order of the image names and with resamples that belong to (seed, resample), so the
    same sums give the same bytes. One place (layer, view, severity, draw, tokens) is held at a time, in each of
    ``Stored.processes``.
    """
    stored = images.with_draws_together(lists=trial_lists(analyses), keep_single=True)
    order = {id(one): number for number, one in enumerate(stored)}
    checkpoints = list(dict.fromkeys(one.checkpoint for one in stored))
    paired = len(checkpoints) > 1
    value = Valuation(analyses, aligned=about.aligned, seed=about.seed, paired=paired)
    places = stored.places()

    def lines_of(number: int) -> _Lines:
        return _lines_of(places[number], value, checkpoints[0], about)

    rows: dict[int, list[dict[str, Any]]] = {}
    differences: dict[int, list[dict[str, Any]]] = {}
    spread = processes.spread(lines_of, len(places), processes=stored.processes)
    for place, (found, different) in zip(places, spread, strict=True):
        rows |= {order[id(place[at])]: lines for at, lines in found.items()}
        differences |= {order[id(place[at])]: lines for at, lines in different.items()}
    table = frame([line for number in sorted(rows) for line in rows[number]])
    if not paired:
        return table, None
    lines = [line for number in sorted(differences) for line in differences[number]]
    return table, frame(lines, comparison=True)


def _lines_of(place: Sequence[StoredCell], value: Valuation, reference: str, about: About) -> _Lines:
    """Return the lines of the cells of a place, and those of their differences from that of the reference."""
    valued = [value(one) for one in place]
    rows = {
        at: [
            row(about, values.checkpoint, values.cell, name, replicates, not_finite=values.not_finite)
            for name, replicates in values.numbers.items()
        ]
        for at, values in enumerate(valued)
    }
    first = next((values for values in valued if values.checkpoint == reference), None)
    if first is None:
        return rows, {}
    return rows, {at: _from(first, values, about) for at, values in enumerate(valued) if values is not first}


def _from(reference: Values, values: Values, about: About) -> list[dict[str, Any]]:
    """Return the lines of the differences of a cell from that of the reference."""
    if values.cell.view in FLOORS:
        return []  # arithmetic, not routing
    if values.image_ids != reference.image_ids:
        raise UserError(
            f"{values.checkpoint} and {reference.checkpoint} were probed on different images, so that no difference "
            "is paired; probe both on the same (leave out what one of them cannot read)."
        )
    return [
        row(
            about,
            values.checkpoint,
            values.cell,
            name,
            replicates.minus(reference.numbers[name]),
            not_finite=values.not_finite or reference.not_finite,
        )
        | {"reference": reference.checkpoint}
        for name, replicates in values.numbers.items()
        # Expert e of one model is no relative of expert e of another.
        if name in reference.numbers and name[2] is None
    ]


def row(
    about: About,
    checkpoint: str,
    cell: Cell,
    name: Name,
    replicates: Replicates,
    *,
    not_finite: bool = False,
) -> dict[str, Any]:
    """Return the line of one value (or difference), by the names of ``columns.COLUMNS``."""
    found = replicates.interval()
    return {
        "run": about.run,
        "checkpoint": checkpoint,
        "group": about.groups.get(checkpoint, ""),
        "train_seed": about.train_seeds.get(checkpoint),
        "dataset": about.dataset,
        "split": about.split,
        "layer": cell.layer,
        "router": cell.router,
        "top_k": cell.top_k or None,
        "view": cell.view,
        "severity": None if np.isnan(cell.severity) else cell.severity,
        "draw": cell.draw or None,
        "tokens": cell.tokens,
        "metric": name[0],
        "null": name[1],
        "expert": name[2],
        "expert_b": name[3],
        "value": found.value,
        "ci_low": found.low,
        "ci_high": found.high,
        "interval": found.method,
        "images": replicates.images,
        "trials": replicates.trials,
        "seed": about.seed,
        # Above all others: what else there is to say is said of the images that are left.
        "flag": COLUMN if not_finite else found.flag,
    }
