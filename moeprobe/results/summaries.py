"""From sums per image to the lines of a table: values, intervals, and paired differences between checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from moeprobe.errors import UserError
from moeprobe.metrics.base import Analysis, Columns, Estimator, trial_lists
from moeprobe.metrics.stats.bootstrap import Bootstrap, Replicates
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, cells, frame, pool_draws
from moeprobe.routing.finite import COLUMN

Analyses = Sequence[Analysis]
# (metric, null, expert, expert_b)
Name = tuple[str, str, int | None, int | None]


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


@dataclass(frozen=True)
class _Measured:
    """One cell of one checkpoint: (metric, null, experts) -> its value, resampled; whether it lacks images."""

    checkpoint: str
    cell: Cell
    image_ids: list[str]
    replicates: dict[Name, Replicates]
    not_finite: bool


def summarize(
    images: pa.Table, *, analyses: Analyses, about: About
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the table of a run and, with two or more checkpoints, the paired differences from the first.

    Where there are random draws, all of them together come first, then each by itself.

    Everything is taken in the order of the image names and with resamples that belong to (seed, resample), so the
    same sums give the same bytes.
    """
    bootstraps: dict[int, Bootstrap] = {}
    measured = []
    lists = trial_lists(analyses)
    for checkpoint, cell, image_ids, columns in cells(pool_draws(images, lists=lists, keep_single=True)):
        found_estimators = estimators(columns, analyses, aligned=about.aligned)
        bootstrap = bootstraps.setdefault(len(image_ids), Bootstrap(len(image_ids), seed=about.seed))
        found = bootstrap.replicate([(metric.statistic, metric.trials) for metric in found_estimators])
        # The statistics themselves, which hold all choices, are let go.
        names = [metric.key for metric in found_estimators]
        replicates = dict(zip(names, found, strict=True))
        measured.append(_Measured(checkpoint, cell, image_ids, replicates, not_finite(columns)))
    rows = [
        row(about, item.checkpoint, item.cell, name, replicates, not_finite=item.not_finite)
        for item in measured
        for name, replicates in item.replicates.items()
    ]
    return frame(rows), _comparison(measured, about)


def estimators(columns: Columns, analyses: Analyses, *, aligned: bool) -> list[Estimator]:
    """Return all that the analyses say of the columns of one cell."""
    return [
        metric
        for analysis in analyses
        if analysis.signature in columns
        for metric in analysis.estimators(columns, aligned=aligned)
    ]


def _comparison(measured: Sequence[_Measured], about: About) -> pd.DataFrame | None:
    checkpoints = list(dict.fromkeys(item.checkpoint for item in measured))
    if len(checkpoints) < 2:
        return None
    references = {item.cell.place(): item for item in measured if item.checkpoint == checkpoints[0]}
    rows: list[dict[str, Any]] = []
    for item in measured:
        if item.cell.view in FLOORS:
            continue  # arithmetic, not routing
        reference = references.get(item.cell.place())
        if item.checkpoint == checkpoints[0] or reference is None:
            continue
        if item.image_ids != reference.image_ids:
            raise UserError(
                f"{item.checkpoint} and {reference.checkpoint} were probed on different images, so that no difference "
                "is paired; probe both on the same (leave out what one of them cannot read)."
            )
        for name, replicates in item.replicates.items():
            # Expert e of one model is no relative of expert e of another.
            of_experts = name[2] is not None
            if name in reference.replicates and not of_experts:
                difference = replicates.minus(reference.replicates[name])
                lacking = item.not_finite or reference.not_finite
                rows.append(
                    row(about, item.checkpoint, item.cell, name, difference, not_finite=lacking)
                    | {"reference": reference.checkpoint}
                )
    return frame(rows, comparison=True)


def not_finite(columns: Columns) -> bool:
    """Whether images of a cell were left out since their gates or scores are no numbers.

    Runs from before that was looked at hold such sums themselves: theirs are not to be trusted either.
    """
    left_out = columns.get(COLUMN)
    if left_out is not None and left_out.any():
        return True
    return not all(np.isfinite(values).all() for values in columns.values() if values.dtype.kind == "f")


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
        "images": replicates.images,
        "trials": replicates.trials,
        "seed": about.seed,
        # Above all others: what else there is to say is said of the images that are left.
        "flag": COLUMN if not_finite else found.flag,
    }
