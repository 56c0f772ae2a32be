"""A line per recording and rule on what a cache of experts finds, a column per size of the cache."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.expert_cache import CACHE_HIT, RULES, SHORT
from moeprobe.metrics.analyses.shared_cache import SHARED_HIT
from moeprobe.metrics.declaration import CHANCE
from moeprobe.results.layouts.cells import Table, TableCell, value

_LRU = CACHE_HIT.make("lru").name
# Lines of the table: metric, null, and what the line is called.
LINES = (
    *((CACHE_HIT.make(rule).name, "", SHORT[rule]) for rule in RULES),
    (f"{_LRU}{CHANCE}", "eviction", "random eviction"),
    (f"{_LRU}{CHANCE}", "even", "even router"),
    (SHARED_HIT.make("lru").name, "", "LRU, one for all layers"),
    (SHARED_HIT.make("optimal").name, "", "optimum, one for all layers"),
)


def of_all_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows on caches of all layers together; of a recording with one layer, of that layer.

    Args:
        table: values of a run, of all tokens.
    """
    rows = table[table["metric"].str.contains("cache_") & table["tokens"].isin(ORDINARY)]
    return rows[rows["layer"] == ""] if (rows["layer"] == "").any() else rows


def expert_cache_table(table: pd.DataFrame) -> Table | None:
    """Return the table of hit rates; None where layers of several shapes have none in common.

    Args:
        table: values of a run.
    """
    rows = of_all_layers(table)
    if rows.empty or rows["layer"].nunique() > 1:
        return None
    sizes = sorted(set(rows.loc[rows["metric"] == _LRU, "severity"]))
    by_line = {
        (row["checkpoint"], row["metric"], row["null"], row["severity"]): row
        for row in rows.to_dict("records")
    }
    lines = [
        [
            TableCell(name),
            TableCell(label),
            *(_cell(by_line.get((name, metric, null, size)), null) for size in sizes),
        ]
        for name in dict.fromkeys(rows["checkpoint"])
        for metric, null, label in LINES
        if any((name, metric, null, size) in by_line for size in sizes)
    ]
    headings = ["checkpoint", "cache", *(f"{int(size):,} per layer" for size in sizes)]
    note = "optimum: Bélády's rule, which knows the future."
    if (rows["metric"] == CACHE_HIT.make("static").name).any():
        note = f"static: the busiest experts of other requests; {note}"
    return Table(
        "Share of the chosen experts that a cache finds, over all MoE layers",
        headings,
        lines,
        note,
        keys=2,
        place=1,
    )


def _cell(row: Mapping[Any, Any] | None, null: str) -> TableCell:
    """Return a value with its interval; levels have none, to save width."""
    cell = value(row)
    return replace(cell, between="") if null else cell
