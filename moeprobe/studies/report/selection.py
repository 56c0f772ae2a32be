"""The short tables of a run: what is read first, as on the screen. Every line stands in the run's CSVs."""

import math
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
from moeprobe.results.layouts.along_severity import (
    BY_REGION,
    REGION_COLUMNS,
    Columns,
    noise_floor,
    regional,
    severity_table,
)
from moeprobe.results.layouts.cells import Cell, Table, counts, severity, value
from moeprobe.results.layouts.side_by_side import side_by_side
from moeprobe.results.numbers import number
from moeprobe.results.phrases import ATTRIBUTION, attribution, sentence_case
from moeprobe.results.tables import FLOORS, agreement_of
from moeprobe.studies.report.reading import Run

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
    pairs = by_pair(comparison)
    prefix = table["tokens"] == "prefix"
    tables = []
    if not prefix.all():
        tables.append(
            side_by_side(table[~prefix], comparison, pairs, modality=modality, caption="What was measured")
        )
    if prefix.any():
        caption = f"The same for the prefix ({modality.prefix}) token"
        tables.append(
            side_by_side(table[prefix], comparison, pairs, modality=modality, caption=caption, folded=True)
        )
    return tables


def _sweep(run: Run, table: pd.DataFrame, comparison: pd.DataFrame | None) -> list[Table]:
    """Return a table per layer, one of the output and one of what changes it: a line per checkpoint and severity.

    The noise floor comes last.
    """
    gates, modality = run.settings.get("replayed_gates", "recomputed"), run.modality

    first = agreement_of(table)
    layers = [layer for layer in dict.fromkeys(table["layer"]) if layer]
    parts = [
        None if part is None else pd.concat([part, regional(part, first)]) for part in (table, comparison)
    ]

    def along(caption: str, place: tuple[str, str], columns: Columns) -> Table | None:
        here, compared = (None if part is None else part[_at(part, place)] for part in parts)
        assert here is not None
        return severity_table(here, compared, columns, caption=caption, modality=modality)

    routing = routing_along_severity(first, modality)
    assert run.table is not None
    found = [
        *(along(f"{layer}, {modality.tokens}", (layer, modality.token), routing) for layer in layers),
        *(along(f"{layer}, {BY_REGION}", (layer, "region"), REGION_COLUMNS) for layer in layers),
        along("Output of the model", ("", ""), output_along_severity()),
        *(
            along(sentence_case(attribution(name, gates)), ("", ""), columns)
            for name, columns in ATTRIBUTION.items()
        ),
        noise_floor(run.table, dtype=run.sidecar.get("floor_dtype"), modality=modality),
    ]
    return [part for part in found if part is not None]


def _at(table: pd.DataFrame, place: tuple[str, str]) -> pd.Series:
    """Return which rows are of a layer and its tokens."""
    return (table["layer"] == place[0]) & (table["tokens"] == place[1])


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
