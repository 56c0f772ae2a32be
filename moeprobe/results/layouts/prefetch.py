"""A line per layer, recording and predictor on experts that are loaded ahead, a column per number of them."""

from dataclasses import replace

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.prefetch import PREDICTORS, PREFETCH
from moeprobe.metrics.analyses.router_ahead import PREFETCH_ROUTER
from moeprobe.metrics.declaration import CHANCE
from moeprobe.results.layouts.cells import Table, TableCell, value
from moeprobe.results.tables import first_and_last

# Lines of the table: metric, null, and what the line is called.
LINES = (
    *((PREFETCH.make(predictor).name, "", predictor) for predictor in PREDICTORS),
    (f"{PREFETCH.make('token').name}{CHANCE}", "busiest", "busiest experts"),
    (f"{PREFETCH.make('token').name}{CHANCE}", "even", "even router"),
    (PREFETCH_ROUTER.name, "", "next router"),
    (f"{PREFETCH_ROUTER.name}{CHANCE}", "busiest", "busiest experts"),
    (f"{PREFETCH_ROUTER.name}{CHANCE}", "even", "even router"),
)


def prefetch_table(table: pd.DataFrame) -> Table | None:
    """Return the table of recalls: of all layers, then of the first and the last ones; None where there are none.

    Args:
        table: values of a run.
    """
    rows = table[table["metric"].str.startswith("prefetch_") & table["tokens"].isin(ORDINARY)]
    if rows.empty:
        return None
    by_line = {
        (row["layer"], row["checkpoint"], row["metric"], row["null"], row["severity"]): row
        for row in rows.to_dict("records")
    }
    sizes = sorted(set(rows["severity"]))
    every = list(dict.fromkeys(rows["layer"]))
    layers = [name for name in every if not name] + first_and_last([name for name in every if name])
    lines = []
    for layer in layers:
        for name in dict.fromkeys(rows["checkpoint"]):
            for metric, null, label in LINES:
                line_rows = [by_line.get((layer, name, metric, null, size)) for size in sizes]
                if any(row is not None for row in line_rows):
                    cells = [replace(value(row), between="") if null else value(row) for row in line_rows]
                    lines.append([TableCell(layer or "all"), TableCell(name), TableCell(label), *cells])
    headings = ["layer", "checkpoint", "predicted from", *(f"{int(size):,} loaded" for size in sizes)]
    note = (
        "next router: applied a layer earlier; busiest experts: of other inputs."
        if (rows["metric"] == PREFETCH_ROUTER.name).any()
        else "layer: the MoE layer before; token: the previous token; busiest experts: of other requests."
    )
    return Table("Share of the chosen experts that are loaded ahead", headings, lines, note, keys=3, place=2)
