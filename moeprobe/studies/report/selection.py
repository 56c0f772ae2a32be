"""The short tables of a run: what is read first, as on the screen. Every line stands in the run's CSVs."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.metrics.reading_order import (
    compared_along_severities,
    compared_first,
    output_along_severity,
    routing_along_severity,
)
from moeprobe.metrics.registry import find
from moeprobe.probes.base import Layout
from moeprobe.probes.registry import of_kind
from moeprobe.results.numbers import number
from moeprobe.results.phrases import ATTRIBUTION, attribution, floors, random_router, sentence_case
from moeprobe.results.tables import FLOORS, agreement_of, by_first_seen
from moeprobe.studies.report.cells import Cell, Table, counts, severity, value
from moeprobe.studies.report.reading import Run

_KEYS = ("layer", "tokens", "metric", "null", "view", "severity")
_DETAILS = ("expert", "expert_b", "class", "draw")
Row = dict[str, Any]


def short_tables(run: Run) -> list[Table]:
    """Return the short tables of a run; none where it has no values."""
    table, comparison = overall(run.table), overall(run.comparison)
    tables: list[Table] = []
    if table is not None:
        kind = of_kind(run.kind)
        along = kind is not None and kind.layout is Layout.ALONG_SEVERITY
        layout = _sweep if along else _side_by_side
        tables += layout(run, table, comparison)
    if run.comparison is not None and comparison is not None and (table is None or "verdict" in comparison):
        tables.append(_differences(comparison, total=len(run.comparison), modality=run.modality))
    if "patches.csv" in run.csvs:
        tables += _changed_patches(run.csvs["patches.csv"])
    return tables


def overall(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return what is read first, about no single expert, class or draw, without the noise floor; None for no rows."""
    if table is None:
        return None
    first = agreement_of(table)
    named = zip(table["metric"], table["null"], strict=True)
    keep = pd.Series(
        [find(name).read_first(null, first=first) for name, null in named], index=table.index, dtype=bool
    )
    if "view" in table:
        keep &= ~table["view"].isin(FLOORS)
    for column in _DETAILS:
        if column in table:
            keep &= table[column] == ""
    return table[keep] if keep.any() else None


def by_pair(comparison: pd.DataFrame | None) -> list[tuple[str, str]]:
    """Return the pairs (checkpoint, reference) that were compared."""
    if comparison is None:
        return []
    return list(dict.fromkeys(zip(comparison["checkpoint"], comparison["reference"], strict=True)))


def _side_by_side(run: Run, table: pd.DataFrame, comparison: pd.DataFrame | None) -> list[Table]:
    """Return the table of the patches and the output, and apart from it that of the prefix tokens."""
    modality = run.modality
    prefix = table["tokens"] == "prefix"
    tables = []
    if not prefix.all():
        tables.append(_lines(table[~prefix], comparison, modality=modality, caption="What was measured"))
    if prefix.any():
        caption = f"The same for the prefix ({modality.prefix}) token"
        tables.append(_lines(table[prefix], comparison, modality=modality, caption=caption, folded=True))
    return tables


def _lines(
    table: pd.DataFrame,
    comparison: pd.DataFrame | None,
    *,
    modality: Modality,
    caption: str,
    folded: bool = False,
) -> Table:
    """Return a line per layer and metric, a column per checkpoint, and the differences."""
    checkpoints, pairs = list(dict.fromkeys(table["checkpoint"])), by_pair(comparison)
    with_layers, with_severity = bool((table["layer"] != "").any()), bool(table["severity"].notna().any())
    with_views = table["view"].nunique() > 1
    lines: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in by_first_seen(table, ("view", "layer", "tokens")).to_dict("records"):
        lines.setdefault(_key(row), {})[row["checkpoint"]] = row
    for row in [] if comparison is None else comparison.to_dict("records"):
        lines.get(_key(row), {})[row["checkpoint"], row["reference"]] = row
    rows = []
    for (layer, tokens, metric, null, view, at), found in lines.items():
        cells = [Cell(layer), Cell(tokens)] if with_layers else []
        cells += [Cell(view)] if with_views else []
        cells += [severity(at)] if with_severity else []
        cells += [Cell(find(metric).full_label(null, modality))]
        cells += [value(found.get(name)) for name in checkpoints]
        cells += [value(found.get(pair), signed=True) for pair in pairs]
        there = [found[name] for name in checkpoints if name in found]
        rows.append([*cells, *(counts(row[what] for row in there) for what in ("images", "trials"))])
    columns = ["layer", "tokens"] if with_layers else []
    columns += (["view"] if with_views else []) + (["severity"] if with_severity else [])
    columns += ["metric", *checkpoints, *(f"{name} − {reference}" for name, reference in pairs)]
    return Table(caption, [*columns, modality.plural, "trials"], rows, folded=folded)


def _key(row: Row) -> tuple[Any, ...]:
    """Return what lines of two checkpoints share; a severity that there is not is None, since NaN is not itself."""
    return tuple(None if row[name] != row[name] else row[name] for name in _KEYS)


def _sweep(run: Run, table: pd.DataFrame, comparison: pd.DataFrame | None) -> list[Table]:
    """Return a table per layer, one of the output and one of what changes it: a line per checkpoint and severity.

    The noise floor comes last.
    """
    gates = run.settings.get("replayed_gates", "recomputed")
    modality = run.modality
    output = ("", "")
    found = [
        *(
            _severity_table(
                table,
                comparison,
                f"{layer}, {modality.tokens}",
                (layer, modality.token),
                routing_along_severity(agreement_of(table), modality),
                modality=modality,
            )
            for layer in dict.fromkeys(table["layer"])
            if layer
        ),
        _severity_table(
            table, comparison, "Output of the model", output, output_along_severity(), modality=modality
        ),
        *(
            _severity_table(
                table, comparison, sentence_case(attribution(name, gates)), output, columns, modality=modality
            )
            for name, columns in ATTRIBUTION.items()
        ),
        _noise_floor(run),
    ]
    return [part for part in found if part is not None]


def _noise_floor(run: Run) -> Table | None:
    """Return how far the clean images match themselves; None where that was not measured."""
    assert run.table is not None
    if "view" not in run.table:
        return None
    first = agreement_of(run.table)
    floor = run.table[run.table["view"].isin(FLOORS) & (run.table["metric"] == first)]
    floor = floor[floor["tokens"].isin(ORDINARY)]
    if floor.empty:
        return None
    rows = []
    for (checkpoint, layer), here in floor.groupby(["checkpoint", "layer"], sort=False):
        by_view = {row["view"]: row for row in here.to_dict("records")}
        cells = [value(by_view.get(view)) for view in FLOORS]
        rows.append(
            [Cell(checkpoint), Cell(layer), *cells, *(counts(here[what]) for what in ("images", "trials"))]
        )
    # A cosine of the same weights is one but for its rounding.
    again = floor[(floor["view"] == FLOORS[0]) & (floor["value"] < 1 - 1e-6)]
    what = sentence_case(find(first).full_label())
    note = f"{what} of clean {run.modality.plural} with themselves: what is missing from 1 is arithmetic."
    for name, lines in again.groupby("checkpoint", sort=False):
        note += f" {random_router(name, lines['value'].min(), first=first)}."
    columns = ["checkpoint", "layer", *floors(run.sidecar.get("floor_dtype")), run.modality.plural, "trials"]
    return Table("Noise floor", columns, rows, note)


def _severity_table(
    table: pd.DataFrame,
    comparison: pd.DataFrame | None,
    caption: str,
    place: tuple[str, str],
    columns: Sequence[tuple[str, str, str]],
    *,
    modality: Modality,
) -> Table | None:
    wanted = [column[:2] for column in columns]
    lines: dict[tuple[str, float], dict[tuple[str, str], Row]] = {}
    rows_of: dict[tuple[str, str], list[Row]] = {}
    for part in (table, comparison):
        for row in [] if part is None else part.to_dict("records"):
            which = (row["metric"], row["null"])
            if (row["layer"], row["tokens"]) != place or which not in wanted:
                continue
            name = row["checkpoint"]
            if part is comparison:
                name = f"{name} − {row['reference']}"
            else:
                rows_of.setdefault(which, []).append(row)
            lines.setdefault((name, row["severity"]), {})[which] = row | {"signed": part is comparison}
    columns = [column for column in columns if column[:2] in rows_of]
    if not columns:
        return None
    rows = [
        [Cell(name), severity(at)]
        + [
            value(found.get(column[:2]), signed=any(row["signed"] for row in found.values()))
            for column in columns
        ]
        for (name, at), found in lines.items()
    ]
    resting: dict[str, list[str]] = {}
    for metric, null, heading in columns:
        images, trials = (
            counts(row[what] for row in rows_of[metric, null]).text for what in ("images", "trials")
        )
        resting.setdefault(f"{images} {modality.plural}, {trials} trials", []).append(heading)
    rests = "; ".join(f"{', '.join(names)}: {on}" for on, names in resting.items())
    note = f"What the values rest on: {rests}."
    return Table(caption, ["checkpoint", "severity", *(heading for _, _, heading in columns)], rows, note)


def _differences(comparison: pd.DataFrame, *, total: int, modality: Modality) -> Table:
    """Return a line per difference; with the verdict and the simultaneous interval it goes by, where there is one."""
    rows = [row for row in comparison.to_dict("records") if row["tokens"] in (*ORDINARY, "")]
    few = not comparison["severity"].notna().any()
    agree = agreement_of(comparison)
    along = compared_along_severities(agree)
    first = [which for which in compared_first(agree) if few or which[0] in along]
    chosen = [row for which in first for row in rows if (row["metric"], row["null"]) == which] or rows
    columns = ["metric", "compared", "layer", "severity", "difference"]
    judged = "verdict" in comparison
    lines = []
    for row in chosen:
        cells = [
            Cell(find(row["metric"]).full_label(row["null"], modality)),
            Cell(f"{row['checkpoint']} − {row['reference']}"),
            Cell(row["layer"] or "output"),
            severity(row["severity"]),
            value(row, signed=True),
        ]
        cells += [_simultaneous(row), Cell(row["verdict"])] if judged else []
        lines.append([*cells, counts([row["images"]]), counts([row["trials"]])])
    if judged:
        columns += ["simultaneous interval", "verdict"]
    note = f"{len(lines):,} of {total:,} differences; all of them are in comparison.csv."
    if judged:
        note += " A verdict goes by the simultaneous interval, which holds for all layers and severities of a metric."
    return Table("Differences", [*columns, modality.plural, "trials"], lines, note)


def _simultaneous(row: Row) -> Cell:
    low, high = row.get("sim_low", math.nan), row.get("sim_high", math.nan)
    if low != low or high != high:
        return Cell("–")
    return Cell(f"[{number(low, signed=True)}, {number(high, signed=True)}]", key=float(low))


def _changed_patches(patches: pd.DataFrame) -> list[Table]:
    """Return how many patches of each image changed the expert that is drawn."""
    keys = [name for name in ("layer", "checkpoint", "image_id", "severity") if name in patches]
    if not {"layer", "checkpoint", "image_id", "changed", "compared"} <= set(patches.columns):
        return []
    rows = []
    for key, part in patches.groupby(keys, sort=False):
        cells = [Cell(text) for text in key[:3]]
        cells += [severity(float(key[3]))] if len(key) > 3 else []
        rows.append(
            [
                *cells,
                counts([(part["changed"] == "True").sum()]),
                counts([(part["compared"] == "True").sum()]),
            ]
        )
    columns = ["image" if name == "image_id" else name for name in keys]
    note = (
        "Single images, to be looked at: no interval belongs to them, and no conclusion about a checkpoint."
    )
    return [Table("Patches that changed their expert", [*columns, "changed", "of"], rows, note)]
