"""A line per checkpoint and view: of variants of a run what chooses otherwise, of corruptions accuracy and κ."""

from typing import Any

import pandas as pd

from moeprobe.inputs.corruptions import FAMILIES, MEAN, MEAN_OF_ANY
from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.registry import find
from moeprobe.results.layouts.cells import Table, TableCell, counts, value
from moeprobe.results.tables import (
    agreement_of,
    deciding_match,
    first_and_last,
    modality_of_table,
    set_match_of,
)

# What is said of a model's answers, as far as it was measured: by variants, and by corruptions.
_OUTPUT = (
    "accuracy", "prediction_agreement", "log_probability_gap", "k3_divergence", "loss_rise", "loss_gap",
)  # fmt: skip
_OUTPUT_OF_CORRUPTIONS = ("accuracy", "prediction_agreement", "corruption_error")


def flips(table: pd.DataFrame, match: str = "") -> pd.DataFrame:
    """Return the shares of ordinary tokens that change experts: 1 minus a match, by default the deciding one."""
    rows = table[table["tokens"].isin(ORDINARY) & table["layer"].ne("")]
    if rows.empty:
        return rows
    rows = rows[rows["metric"] == (match or deciding_match(rows))]
    low, high = 1 - rows["ci_high"], 1 - rows["ci_low"]
    return rows.assign(value=1 - rows["value"], ci_low=low, ci_high=high)


def by_view_table(table: pd.DataFrame, *, caption: str) -> Table:
    """Return the table: shares of tokens that change experts, κ of the first layer, then the output."""
    rows = flips(table, agreement_of(table))
    layers = list(dict.fromkeys(rows["layer"]))
    selected = first_and_last(layers)
    kappas = table[table["tokens"].isin(ORDINARY) & table["null"].eq("pooled")]
    kappas = kappas[kappas["metric"] == leading_kappa(table)]
    outputs = [name for name in _OUTPUT if (table["metric"] == name).any()]
    columns = {f"{layer}: first expert differs": _by_line(rows, layer) for layer in selected}
    if sets := set_match_of(table):
        columns |= {f"{layer}: set differs": _by_line(flips(table, sets), layer) for layer in selected}
    columns |= {f"{layer}: κ": _by_line(kappas, layer) for layer in selected[:1]}
    columns |= {find(name).metric.label: _by_line(table[table["metric"] == name], "") for name in outputs}
    several = table["checkpoint"].nunique() > 1
    lines = []
    for (checkpoint, view), of_line in table.groupby(["checkpoint", "view"], sort=False):
        leading = ([TableCell(checkpoint)] if several else []) + [TableCell(view)]
        cells = [value(column.get((checkpoint, view))) for column in columns.values()]
        lines.append([*leading, *cells, counts([of_line["images"].max()])])
    omitted = [name for name in layers if name not in selected]
    note = f"The first and the last of {len(layers)} layers; table.csv has all." if omitted else ""
    heading = [*(["checkpoint"] if several else []), "variant"]
    return Table(
        caption,
        [*heading, *columns, modality_of_table(table).units],
        lines,
        note,
        keys=len(heading),
        place=len(heading) - 1,
        details=1,
    )


def _by_line(rows: pd.DataFrame, layer: str) -> dict[tuple[str, str], dict[Any, Any]]:
    """Return the rows of a layer by checkpoint and view; of several the first."""
    of_layer = rows[rows["layer"] == layer].to_dict("records")
    return {(row["checkpoint"], row["view"]): row for row in reversed(of_layer)}


# A line per checkpoint and corruption, or family of them: accuracy and κ of each layer, mean over severities.


def leading_kappa(table: pd.DataFrame) -> str:
    """Return the κ that decides: of what processes tokens."""
    return f"{deciding_match(table)}{KAPPA}"


def agreement_rows(table: pd.DataFrame, *, severity: bool = False) -> pd.DataFrame:
    """Return the rows of this κ about ordinary tokens; means over severities, or those at each ``severity``."""
    rows = table[table["metric"].eq(leading_kappa(table)) & table["null"].eq("pooled")]
    rows = rows[rows["tokens"].isin(ORDINARY)]
    return rows[rows["severity"].notna() if severity else rows["severity"].isna()]


def means_table(table: pd.DataFrame, comparison: pd.DataFrame | None, *, caption: str, full: bool) -> Table:
    """Return the table.

    Args:
        table: of a run.
        comparison: its paired differences.
        caption: of the table.
        full: whether each corruption has a line, too.
    """
    together = ("clean", *FAMILIES, MEAN, MEAN_OF_ANY)
    views = [view for view in together if (table["view"] == view).any()]
    views += [view for view in dict.fromkeys(table["view"]) if view not in together] if full else []
    kappas = agreement_rows(table)
    layers = list(dict.fromkeys(kappas["layer"]))
    selected = first_and_last(layers)
    outputs = [name for name in _OUTPUT_OF_CORRUPTIONS if (table["metric"] == name).any()]
    headings = [find(name).metric.label for name in outputs] + [f"κ, {layer}" for layer in selected]
    columns = [(name, "") for name in outputs] + [(leading_kappa(table), layer) for layer in selected]
    blocks: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for part in (table, comparison):
        for row in [] if part is None else _overall(part).to_dict("records"):
            name = row["checkpoint"] + (f" − {row['reference']}" if part is comparison else "")
            blocks.setdefault(name, {})[row["view"], row["metric"], row["layer"]] = row
    lines = [
        [
            TableCell(name),
            TableCell(view),
            *(value(rows.get((view, *column)), signed=" − " in name) for column in columns),
            counts(row["images"] for (of_view, *_), row in rows.items() if of_view == view),
        ]
        for name, rows in blocks.items()
        for view in views
        if any(of_view == view for of_view, *_ in rows)
    ]
    note = f"κ is of {find(leading_kappa(table)).metric.label}, against the pooled chance level."
    if MEAN_OF_ANY in views:
        units = modality_of_table(table).units
        note += (
            f" Intervals are over {units}, for these corruptions; {MEAN_OF_ANY!r} is for others like them."
        )
    if len(selected) < len(layers):
        note += f" Of {len(layers)} layers the first and the last; table.csv has all."
    unit = modality_of_table(table).units
    return Table(
        caption, ["checkpoint", "corruption", *headings, unit], lines, note, keys=2, place=1, details=1
    )


def _overall(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of output and leading κ that are means over severities, or of the clean image."""
    kappa = agreement_rows(table)
    output = table[
        table["metric"].isin(_OUTPUT_OF_CORRUPTIONS) & (table["severity"].isna() | table["view"].eq("clean"))
    ]
    return pd.concat([output, kappa])
