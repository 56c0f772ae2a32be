"""Agreement of checkpoints: match, chance and κ side by side, a line per layer, metric and checkpoint."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import find
from moeprobe.results.layouts.cells import Table, TableCell, counts, trials_of, value

Row = dict[str, Any]
# The chance level, and that of the column after κ, where a run has it.
_NULLS = "pooled", "image"


def agreement_table(
    table: pd.DataFrame,
    comparison: pd.DataFrame | None,
    metrics: Sequence[str],
    *,
    caption: str,
    modality: Modality,
    nulls: tuple[str, str] = _NULLS,
) -> Table | None:
    """Return a line per layer, metric and checkpoint, then one per difference; None where nothing was measured.

    Args:
        table: values of a run in one view.
        comparison: its differences.
        metrics: kinds of agreement, such as ``top1_match``.
        caption: of the table.
        modality: images or texts.
        nulls: the chance level, and a stricter one whose κ is shown where a run has it.
    """
    usual, strict = nulls
    table = _select(table, metrics, nulls)
    if table.empty:
        return None
    pairs = [] if comparison is None else _select(comparison, metrics, nulls).to_dict("records")
    # Of two checkpoints the names stand in the lines above.
    two = table["checkpoint"].nunique() == 2
    stricter = f"{metrics[0]}{KAPPA}" if (table["null"] == strict).any() else ""
    lines: dict[tuple[str, str, str], dict[tuple[str, str], Row]] = {}
    for row in [*table.to_dict("records"), *pairs]:
        reference = row.get("reference")
        difference = "difference" if two else f"{row['checkpoint']} − {reference}"
        key = (
            row["layer"],
            find(row["metric"]).metric.name,
            row["checkpoint"] if reference is None else difference,
        )
        lines.setdefault(key, {})[row["metric"], row["null"]] = row
    layers = list(dict.fromkeys(table["layer"]))
    rows = []
    for key in sorted(lines, key=lambda line: (layers.index(line[0]), metrics.index(line[1]))):
        layer, metric, name = key
        of_line = lines[key]
        signed = any("reference" in row for row in of_line.values())
        cells = [
            value(of_line.get((metric, "")), signed=signed),
            # A difference of chance levels says nothing about routing.
            TableCell("") if signed else _without_interval(of_line.get((f"{metric}{CHANCE}", usual))),
            value(of_line.get((f"{metric}{KAPPA}", usual)), signed=signed),
        ]
        if stricter:
            cells.append(value(of_line.get((f"{metric}{KAPPA}", strict)), signed=signed))
        rows.append(
            [TableCell(layer), TableCell(find(metric).full_label("", modality)), TableCell(name), *cells]
        )
    headings = ["layer", "metric", "checkpoint", _heading(metrics), "chance", "κ"]
    headings += [find(stricter).label(strict, modality).strip()] if stricter else []
    images, trials = (counts(table[what]).text for what in ("images", "trials"))
    note = f"Over {modality.format_count(images)}, {trials_of(trials)}."
    return Table(caption, headings, rows, note, keys=3, place=2)


def _select(table: pd.DataFrame, metrics: Sequence[str], nulls: tuple[str, str]) -> pd.DataFrame:
    names = {f"{metric}{form}" for metric in metrics for form in ("", CHANCE, KAPPA)}
    keep = table["metric"].isin(names) & table["null"].isin(("", *nulls)) & table["tokens"].isin(ORDINARY)
    if "draw" in table:  # of several draws the rows of all together
        keep &= table["draw"].isna() | (table["draw"].astype(object) == "")
    return table[keep]


def _without_interval(row: Row | None) -> TableCell:
    return dataclasses.replace(value(row), between="")


def _heading(metrics: Sequence[str]) -> str:
    """Return what the values before the correction are called."""
    return "match" if all("match" in find(metric).metric.label for metric in metrics) else "value"
