"""Result tables for the screen: what is read first. Every line is in table.csv."""

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli.cells import on_screen
from moeprobe.cli.screen import console
from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics.reading_order import output_along_severity, routing_along_severity
from moeprobe.metrics.registry import find
from moeprobe.results.layouts import side_by_side as layouts
from moeprobe.results.layouts.along_severity import (
    BY_REGION,
    REGION_COLUMNS,
    noise_floor,
    regional,
    severity_table,
)
from moeprobe.results.phrases import ATTRIBUTION, attribution
from moeprobe.results.tables import FLOORS, agreement_of

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def side_by_side(
    result: "Result", *, title: str, only: Collection[tuple[str, str]] | None = None
) -> list[Table | str]:
    """Return one table: a line per layer and metric, a column per checkpoint, the differences last; then what it omits.

    Numbers about single experts are too many for a screen. ``only`` are (metric, null), of patches, tokens of texts and
    the output; None = what is read first of all tokens.
    """
    result = of_all_experts(result)
    table, comparison = result.table, result.comparison
    first, *others = dict.fromkeys(table["checkpoint"])
    agreement = agreement_of(table)
    named = zip(table["metric"], table["null"], strict=True)
    wanted = pd.Series(
        [
            find(name).read_first(null, first=agreement) if only is None else (name, null) in only
            for name, null in named
        ],
        index=table.index,
    )
    if only is not None:
        wanted &= table["tokens"].isin([*ORDINARY, ""])
    layout = layouts.side_by_side(
        table[wanted],
        comparison,
        [(name, first) for name in others] if comparison is not None and len(comparison) else [],
        caption=title,
        modality=modality_of(table["tokens"]),
        severities=False,
    )
    stacked = console().width < 42 + 26 * (2 * len(others) + 1)
    shown = on_screen(layout, title=title, stacked=stacked)
    return [*shown, layout.note] if layout.note else [*shown]


def of_all_experts(result: "Result") -> "Result":
    """Return a result without the numbers about single experts."""
    tables = [
        None if table is None else table[table["expert"].isna()]
        for table in (result.table, result.comparison)
    ]
    return dataclasses.replace(result, table=tables[0], comparison=tables[1])


def along_severity(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer and one of the output: a line per checkpoint and severity."""
    result = of_all_experts(result)
    floor = _floor_table(result)
    result = dataclasses.replace(result, table=result.table[~result.table["view"].isin(FLOORS)])
    patches = result.table[result.table["tokens"].isin(ORDINARY)]
    tables: list[Table] = []
    columns = routing_along_severity(agreement_of(result.table), modality_of(result.table["tokens"]))
    for layer, rows in patches.groupby("layer", sort=False):
        tables += severity_tables(
            result, rows, columns, f"{title}: {layer}, {modality_of(rows['tokens']).tokens}"
        )
    tables += _by_region(result, title=title)
    output = result.table[result.table["layer"] == ""]
    if len(output):
        tables += severity_tables(result, output, output_along_severity(), f"{title}: output")
    if output["metric"].isin([name for columns in ATTRIBUTION.values() for name, _, _ in columns]).any():
        gates = result.sidecar["request"]["replayed_gates"]
        for name, columns in ATTRIBUTION.items():
            tables += severity_tables(result, output, columns, f"{title}: {attribution(name, gates)}")
    return [*tables, *floor]


def _floor_table(result: "Result") -> list[Table]:
    """Return a table of how far the clean images match themselves; none where that was not measured."""
    modality = modality_of(result.table["tokens"])
    floor = noise_floor(result.table, dtype=result.sidecar.get("floor_dtype"), modality=modality)
    if floor is None:
        return []
    images = int(result.table[result.table["view"].isin(FLOORS)]["images"].max())
    what = (
        f"{find(agreement_of(result.table)).full_label()} of {images} clean {modality.plural} with themselves"
    )
    title = f"{floor.caption}: {what}, {modality.tokens}"
    return on_screen(floor, title=title, stacked=console().width < _PLACE + 4 * _INTERVAL)


def _by_region(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer: kappa by what the patches show; none where that is not known."""
    first = agreement_of(result.table)
    comparison = None if result.comparison is None else regional(result.comparison, first)
    by_region = dataclasses.replace(result, table=regional(result.table, first), comparison=comparison)
    return [
        table
        for layer, rows in by_region.table.groupby("layer", sort=False)
        for table in severity_tables(by_region, rows, REGION_COLUMNS, f"{title}: {layer}, {BY_REGION}")
    ]


# Columns of characters that a checkpoint and a severity take, and a stacked interval.
_PLACE, _INTERVAL = 34, 21


def severity_tables(
    result: "Result", rows: pd.DataFrame, columns: tuple[tuple[str, str, str], ...], title: str
) -> list[Table]:
    """Return the columns that were measured, in as many tables as a narrow window takes."""
    measured = set(zip(rows["metric"], rows["null"], strict=True))
    columns = tuple(column for column in columns if column[:2] in measured)
    most = max(1, (console().width - _PLACE) // _INTERVAL)
    parts = [columns[start : start + most] for start in range(0, len(columns), most)]
    compared = result.comparison
    if compared is not None:
        compared = compared[compared["layer"].isin(set(rows["layer"]))]
        compared = compared[compared["tokens"].isin(set(rows["tokens"]))]
    modality = modality_of(rows["tokens"])
    made = [(part, severity_table(rows, compared, part, caption=title, modality=modality)) for part in parts]
    return [
        table
        for part, layout in made
        if layout is not None
        for table in on_screen(layout, title=title, stacked=console().width < 40 + 25 * len(part))
    ]
