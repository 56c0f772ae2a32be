"""A line per layer and recording on the distinct experts of consecutive tokens, a column per number of tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.asleep import ASLEEP
from moeprobe.metrics.analyses.asleep import EXCESS as ASLEEP_EXCESS
from moeprobe.metrics.analyses.asleep import INDEPENDENT as ASLEEP_INDEPENDENT
from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, EVEN, INDEPENDENT
from moeprobe.results.layouts.cells import Table, TableCell, value

# Columns of a table: of more sizes every second, fourth and so on is shown.
_MOST_COLUMNS = 6
_LINES = {DISTINCT_EXPERTS.name: "consecutive", INDEPENDENT.name: "independent", EVEN.name: "even router"}
_ASLEEP = (ASLEEP, ASLEEP_INDEPENDENT, ASLEEP_EXCESS)


def distinct_experts_table(table: pd.DataFrame) -> Table | None:
    """Return the table of distinct experts; None where no two tokens follow one another.

    Args:
        table: values of a run.
    """
    ordinary = table[table["metric"].isin(_LINES) & table["tokens"].isin(ORDINARY) & (table["images"] > 0)]
    # One token uses k experts.
    sizes = [size for size in dict.fromkeys(ordinary["severity"]) if size > 1]
    if not sizes:
        return None
    columns = sizes[:: -(-len(sizes) // _MOST_COLUMNS)]
    rows = {
        (row["layer"], row["checkpoint"], row["metric"], row["severity"]): row
        for row in ordinary.to_dict("records")
    }
    lines = [
        [
            TableCell(layer),
            TableCell(name),
            TableCell(label),
            *(_cell(rows.get((layer, name, metric, size))) for size in columns),
        ]
        for layer in dict.fromkeys(ordinary["layer"])
        for name in dict.fromkeys(ordinary["checkpoint"])
        for metric, label in _LINES.items()
    ]
    headings = ["layer", "checkpoint", "tokens", *(f"{int(size):,}" for size in columns)]
    note = "independent: as many tokens that choose independently of each other, with the loads of the same requests."
    return Table("Distinct experts of so many consecutive tokens", headings, lines, note, keys=3, place=2)


def _cell(row: Mapping[Any, Any] | None) -> TableCell:
    """Return a value with its interval; what it is compared with has none, to save width."""
    cell = value(row)
    return (
        replace(cell, between="")
        if row is not None and row["metric"] in (INDEPENDENT.name, EVEN.name)
        else cell
    )


def asleep_table(table: pd.DataFrame) -> Table | None:
    """Return the table of experts that a request never uses; None where there is none.

    Args:
        table: values of a run.
    """
    names = [metric.name for metric in _ASLEEP]
    rows = table[table["metric"].isin(names) & table["tokens"].isin(ORDINARY)]
    if rows.empty:
        return None
    by_line = {(row["layer"], row["checkpoint"], row["metric"]): row for row in rows.to_dict("records")}
    lines = [
        [TableCell(layer), TableCell(name), *(value(by_line.get((layer, name, metric))) for metric in names)]
        for layer in dict.fromkeys(rows["layer"])
        for name in dict.fromkeys(rows["checkpoint"])
    ]
    headings = ["layer", "checkpoint", "asleep", "independent tokens", "difference"]
    return Table("Experts that a request never uses, while others do", headings, lines, "", keys=2, place=1)
