"""The standard errors that a pilot has: of its judged differences, or of the values of one checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.judging.trainings import TRAININGS, read_claims
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import CROSSED, Replicates
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.metrics.stats.statistic import Array, standard_error
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.results import finished
from moeprobe.results.columns import TRAININGS_COLUMNS, UNIT
from moeprobe.results.finished import Measured
from moeprobe.results.packed import find_run
from moeprobe.results.sidecars import read_sidecar
from moeprobe.results.tables import FLOORS
from moeprobe.results.values import Evaluator
from moeprobe.runtime.files import is_file
from moeprobe.runtime.run_files import IMAGES
from moeprobe.studies.compare import compare
from moeprobe.studies.hand_pairs import HandPair

Row = dict[str, Any]
_FAMILY = ["checkpoint", "reference", "tokens", "metric", "null"]


@dataclass(frozen=True)
class Pilot:
    """What finished runs say of the errors of larger ones.

    Attributes:
        rows: a row per comparison: its cell, ``images``, ``se``, ``factor`` and ``effect``; NaN where there is none.
            Without a ``reference`` it is of values, as if another checkpoint's were as variable on other images.
        trainings: claims about trainings, with their variance components; empty of fewer than three pairs.
        data: what tables call the data.
    """

    rows: pd.DataFrame
    trainings: pd.DataFrame
    data: str


def read_pilot(runs: Sequence[str | Path], pairs: Sequence[HandPair]) -> Pilot:
    """Return the errors of finished runs.

    Args:
        runs: one run of one or more checkpoints, a comparison, or runs as ``compare`` takes them.
        pairs: as ``compare`` takes them.

    Raises:
        UserError: a run cannot be read, or they cannot be compared.
    """
    for run in runs:
        if not finished.is_finished(Path(run)):
            raise UserError(
                f"{run} is no finished run; plan reads the folder that a probe or compare wrote ({option('out')})."
            )
    first = Path(runs[0])
    if len(runs) > 1 or pairs or (find_run(first) and len(read_sidecar(first).checkpoints) > 1):
        comparison = compare([str(run) for run in runs], pairs=pairs)
        return _of_differences(comparison.table, comparison.trainings)
    if not is_file(first / "comparison.csv"):
        return _of_values(finished.read(first))
    # Committed runs have their tables, and no sums per image.
    table, claims = finished.read_comparison(first), pd.DataFrame(columns=list(TRAININGS_COLUMNS))
    if is_file(first / TRAININGS):
        claims = read_claims(first / TRAININGS)
    pilot = _of_differences(table, claims)
    if not is_file(first / IMAGES):
        return pilot
    # How two recordings agree is a value and no difference: there is one for both.
    values = _of_values(finished.read(first)).rows
    remaining = values[~values["metric"].isin(table["metric"])]
    if remaining.empty:
        return pilot
    return replace(pilot, rows=pd.concat([pilot.rows, remaining], ignore_index=True))


def _of_differences(table: pd.DataFrame, trainings: pd.DataFrame) -> Pilot:
    # More images do not mend an error that comes from the spread between corruptions, too.
    table = table[table["interval"] != CROSSED]
    if table.empty:
        raise UserError("The run holds no difference of two checkpoints, so there is no error to plan with.")
    sampled = table["se"].where(table["se"] > 0)
    sides = table[["checkpoint_value", "reference_value"]]
    variance = (sides * (1 - sides)).sum(axis=1) / table["trials"].where(table["trials"] > 0)
    effect = (sampled**2 / variance.where(variance > 0)).where([_is_share(name) for name in table["metric"]])
    # Without severities the column holds None in memory.
    table = table.assign(severity=table["severity"].astype(float))
    rows = table.assign(se=sampled, factor=(table["sim_high"] - table["value"]) / sampled, effect=effect)
    return Pilot(rows, trainings, data=str(table["dataset"].iloc[0]))


def _is_share(name: str) -> bool:
    """Whether a number is the share of tokens with a property; an entropy in shares is none."""
    form = find(name)
    return form.kind == "raw" and form.metric.unit == "share" and bool(form.metric.better)


def _of_values(measured: Measured) -> Pilot:
    """Return the errors of differences from one checkpoint's values, as if another's were as variable elsewhere."""
    analyses, units = analyses_of(measured.request), measured.units
    evaluator = Evaluator.for_differences(
        analyses,
        aligned=measured.is_aligned,
        seed=measured.request.seed,
        unit_of=None if units is None else units.unit_of,
    )
    rows: list[Row] = []
    for stored in measured.sums.pool_draws(lists=trial_lists(analyses)):
        if stored.cell.view in FLOORS:
            continue
        values, cell = evaluator(stored), stored.cell
        shared = {
            "checkpoint": values.checkpoint, "reference": "", "dataset": measured.request.data, "layer": cell.layer,
            "view": cell.view, "severity": cell.severity, "tokens": cell.tokens,
        } | ({} if units is None else {UNIT: units.name})  # fmt: skip
        for name, number in values.numbers.items():
            error = _error(number, values.influences.get(name, number.influence))
            rows.append(
                shared
                | {"metric": name.metric, "null": name.null, "value": number.point, "images": number.images}
                | {"trials": number.trials, "se": np.sqrt(2) * error, "effect": number.effect}
            )
    table = pd.DataFrame(rows)
    cells = table.groupby(_FAMILY, dropna=False)["se"].transform("count")
    # As many comparisons as the metric has cells hold at once (Šidák).
    factors = [
        critical(int(images), confidence=CONFIDENCE ** (1 / max(count, 1))) if images > 1 else np.nan
        for images, count in zip(table["images"], cells, strict=True)
    ]
    claims = pd.DataFrame(columns=list(TRAININGS_COLUMNS))
    return Pilot(table.assign(factor=factors), claims, data=measured.request.data)


def _error(number: Replicates, influence: Array | None) -> float:
    """Return the standard error of a value; NaN where it has no interval or does not vary."""
    if influence is None or number.images < 2 or number.interval().flag or np.isnan(influence).any():
        return np.nan
    error = float(np.hypot(standard_error(influence, number.images), number.grain))
    return error if error > 0 else np.nan


def worst_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per family, of the comparison that needs most images; of none with an error its first one."""
    worst = rows.groupby(_FAMILY, sort=False, dropna=False)["images_needed"]
    # A family in which nothing has an error keeps its place in the table.
    filled = worst.transform(lambda needed: needed.fillna(-1).eq(needed.fillna(-1).max()))
    return rows[filled].drop_duplicates(_FAMILY)


def location(row: Mapping[str, Any]) -> str:
    """Return where a comparison was measured, e.g. ``blocks.1, severity 0.2``."""
    parts = [row["layer"], f"severity {row['severity']:g}" if row["severity"] == row["severity"] else ""]
    return ", ".join(part for part in parts if part)
