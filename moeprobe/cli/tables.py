"""Result tables for the screen: what is read first. Every line stands in table.csv."""

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli.fit import fit
from moeprobe.cli.screen import console
from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.inputs.regions import REGIONS
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.reading_order import output_along_severity, routing_along_severity
from moeprobe.metrics.registry import find
from moeprobe.results.numbers import interval, number
from moeprobe.results.phrases import ATTRIBUTION, attribution, floors
from moeprobe.results.tables import FLOORS, agreement_of, by_first_seen

if TYPE_CHECKING:
    from moeprobe.results.folder import Result


def side_by_side(
    result: "Result", *, title: str, only: Collection[tuple[str, str]] | None = None
) -> list[Table]:
    """Return one table: a line per layer and metric, a column per checkpoint, the differences last.

    Numbers about single experts are too many for a screen. ``only`` are (metric, null), of patches, tokens of texts and
    the output; None = what is read first of all tokens.
    """
    result = of_all_experts(result)
    checkpoints = list(dict.fromkeys(result.table["checkpoint"]))
    table = Table(title=title, title_justify="left", title_style="bold")
    stacked = console().width < 42 + 26 * (2 * len(checkpoints) - 1)
    of_layers = (result.table["layer"] != "").any()
    if of_layers:
        for name in ("layer", "tokens"):
            table.add_column(name)
    table.add_column("metric")
    for checkpoint in checkpoints:
        table.add_column(checkpoint, justify="right")
    for checkpoint in checkpoints[1:]:
        if result.comparison is not None and len(result.comparison):
            table.add_column(f"{checkpoint} −\n{checkpoints[0]}", justify="right")
    keys = ["layer", "tokens", "metric", "null"]
    modality = modality_of(result.table["tokens"])
    first = agreement_of(result.table)
    named = zip(result.table["metric"], result.table["null"], strict=True)
    wanted = pd.Series(
        [
            find(name).read_first(null, first=first) if only is None else (name, null) in only
            for name, null in named
        ],
        index=result.table.index,
    )
    if only is not None:
        wanted &= result.table["tokens"].isin([*ORDINARY, ""])
    shown = by_first_seen(result.table[wanted], ("layer", "tokens"))
    differences = (
        pd.DataFrame(columns=[*keys, "checkpoint"]) if result.comparison is None else result.comparison
    )
    of_line = dict(tuple(differences.groupby(keys, sort=False)))
    previous = None
    for key, rows in shown.groupby(keys, sort=False):
        _, _, metric, null = key
        cells = _cells(rows, checkpoints, signed=False, stacked=stacked)
        if len(differences):
            cells += _cells(of_line.get(key, differences[:0]), checkpoints[1:], signed=True, stacked=stacked)
        place = key[:2]
        if previous is not None and previous != place:
            table.add_section()
        names = place if previous != place else ("", "")
        table.add_row(*(names if of_layers else ()), find(metric).label(null, modality), *cells)
        previous = place
    return fit(table, keys=3 if of_layers else 1, width=console().width)


def of_all_experts(result: "Result") -> "Result":
    """Return a result without the numbers about single experts."""
    tables = [
        None if table is None else table[table["expert"].isna()]
        for table in (result.table, result.comparison)
    ]
    return dataclasses.replace(result, table=tables[0], comparison=tables[1])


def _cells(rows: pd.DataFrame, checkpoints: list[str], *, signed: bool, stacked: bool) -> list[str]:
    """Return a cell per checkpoint; empty where it has no such row (another layer, another k)."""
    by_name = {row["checkpoint"]: interval(row, signed=signed, stacked=stacked) for _, row in rows.iterrows()}
    return [by_name.get(name, "") for name in checkpoints]


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
    first = agreement_of(result.table)
    rows = result.table[(result.table["metric"] == first) & result.table["tokens"].isin(ORDINARY)]
    rows = rows[rows["view"].isin(FLOORS)]
    if rows.empty:
        return []
    images = int(rows["images"].max())
    stacked = console().width < _PLACE + 4 * _INTERVAL
    modality = modality_of(rows["tokens"])
    what = (
        f"{find(first).full_label()} of {images} clean {modality.plural} with themselves, {modality.tokens}"
    )
    table = Table(title=f"Noise floor: {what}", title_justify="left", title_style="bold")
    for name in ("checkpoint", "layer", *floors(result.sidecar["floor_dtype"])):
        table.add_column(name)
    for (checkpoint, layer), here in rows.groupby(["checkpoint", "layer"], sort=False):
        by_view = {row["view"]: interval(row, stacked=stacked) for _, row in here.iterrows()}
        table.add_row(checkpoint, layer, *[by_view.get(view, "") for view in FLOORS])
    return fit(table, keys=2, width=console().width)


def _by_region(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer: kappa by what the patches show; none where that is not known."""
    first = agreement_of(result.table)
    columns = tuple((region, "", f"κ, {region}") for region in reversed(REGIONS))

    def regional(table: pd.DataFrame) -> pd.DataFrame:
        kept = (
            table["tokens"].isin(REGIONS)
            & (table["metric"] == f"{first}{KAPPA}")
            & (table["null"] == "pooled")
        )
        return table[kept].assign(metric=table["tokens"], null="", tokens="region")

    comparison = None if result.comparison is None else regional(result.comparison)
    shown = dataclasses.replace(result, table=regional(result.table), comparison=comparison)
    return [
        table
        for layer, rows in shown.table.groupby("layer", sort=False)
        for table in severity_tables(shown, rows, columns, f"{title}: {layer}, by what the patch shows")
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
    tables = [_severity_table(result, rows, part, title) for part in parts]
    return [part for table in tables for part in fit(table, keys=2, width=console().width)]


def _severity_table(
    result: "Result", rows: pd.DataFrame, columns: tuple[tuple[str, str, str], ...], title: str
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    stacked = console().width < 40 + 25 * len(columns)
    table.add_column("checkpoint")
    table.add_column("severity", justify="right")
    for _, _, name in columns:
        table.add_column(name, justify="right")
    blocks = [(checkpoint, part, False) for checkpoint, part in rows.groupby("checkpoint", sort=False)]
    if result.comparison is not None:
        layers = set(rows["layer"])
        compared = result.comparison[result.comparison["layer"].isin(layers)]
        compared = compared[compared["tokens"].isin(set(rows["tokens"]))]
        for (checkpoint, reference), part in compared.groupby(["checkpoint", "reference"], sort=False):
            blocks.append((f"{checkpoint} − {reference}", part, True))
    for checkpoint, part, signed in blocks:
        table.add_section()
        for line, (severity, here) in enumerate(part.groupby("severity", sort=False)):
            cells = []
            for metric, null, _ in columns:
                found = here[(here["metric"] == metric) & (here["null"] == null)]
                cells.append(interval(found.iloc[0], signed=signed, stacked=stacked) if len(found) else "")
            table.add_row(checkpoint if line == 0 else "", number(float(severity)), *cells)
    return table
