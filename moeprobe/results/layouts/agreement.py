"""Agreement: of checkpoints, with chance and κ side by side; of aligned trainings, a line per layer and pair."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import find
from moeprobe.results.layouts.cells import Table, TableCell, counts, trials_of, value
from moeprobe.results.tables import is_pooled, kappa_symbol, modality_of_table

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
    # The lines above name the checkpoints where there are two.
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
    symbols = {metric: kappa_symbol(table, metric) for metric in metrics}
    # The heading over the values says κ.
    first_choices = {metric: f" ({symbol})" for metric, symbol in symbols.items() if symbol != "κ"}
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
            [
                TableCell(layer),
                TableCell(f"{find(metric).full_label('', modality)}{first_choices.get(metric, '')}"),
                TableCell(name),
                *cells,
            ]
        )
    headings = ["layer", "metric", "checkpoint", _heading(metrics), "chance", "κ"]
    headings += [find(stricter).label(strict, modality).strip()] if stricter else []
    images, trials = (counts(table[what]).text for what in ("images", "trials"))
    note = f"Over {modality.format_count(images)}, {trials_of(trials)}."
    return Table(caption, headings, rows, note, keys=3, place=2)


def _select(table: pd.DataFrame, metrics: Sequence[str], nulls: tuple[str, str]) -> pd.DataFrame:
    names = {f"{metric}{form}" for metric in metrics for form in ("", CHANCE, KAPPA)}
    keep = table["metric"].isin(names) & table["null"].isin(("", *nulls)) & table["tokens"].isin(ORDINARY)
    if "draw" in table:
        keep &= is_pooled(table["draw"])
    return table[keep]


def _without_interval(row: Row | None) -> TableCell:
    return dataclasses.replace(value(row), between="")


def _heading(metrics: Sequence[str]) -> str:
    """Return what the values before the correction are called."""
    return "match" if all("match" in find(metric).metric.label for metric in metrics) else "value"


# Aligned trainings: a line per layer and pair, then a line per layer and set of trainings.

_SHARES = (
    alignment.SHARE_DATA,
    alignment.SHARE_POSITION,
    alignment.SHARE_CONTENT,
    alignment.SHARE_SEED,
)
# Stands between two sets of trainings whose difference is given.
_MINUS = " − "


def aligned_tables(table: pd.DataFrame, *, caption: str) -> list[Table]:
    """Return the agreement of pairs on held-out inputs beside that in sample, and the shares of sets of trainings."""
    ordinary = table[table["tokens"].isin(ORDINARY) & table["layer"].ne("") & is_pooled(table["expert"])]
    of_pairs: dict[str, tuple[str, str]] = {
        EXPERT_OVERLAP.short: (EXPERT_OVERLAP.name, ""),
        "κ": (f"{EXPERT_OVERLAP.name}{KAPPA}", "pooled"),
        "κ, position": (f"{EXPERT_OVERLAP.name}{KAPPA}", "position"),
    }
    of_pairs |= {
        metric.short: (metric.name, "")
        for metric in (alignment.FITTED, alignment.FITTED_UNRELATED, alignment.FITTED_P)
    }
    of_sets = {metric.short: (metric.name, "") for metric in _SHARES}
    plural = modality_of_table(table).units
    pairs, sets = (
        ordinary[ordinary["metric"] == metric.name] for metric in (alignment.FITTED, alignment.SHARE_DATA)
    )
    tables = [_lines(ordinary, pairs, of_pairs, caption=caption, heading="pair", plural=plural)]
    if len(sets):
        tables.append(
            _lines(
                ordinary,
                sets,
                of_sets,
                caption="What determines the routing; intervals over images and trainings",
                heading="trainings",
                plural=plural,
            )
        )
    return tables


def difference_label(name: str, reference: str) -> str:
    """Return what tables call the difference of two sets of trainings."""
    return f"{name}{_MINUS}{reference}"


def is_difference(name: str) -> bool:
    """Whether a line is about such a difference."""
    return _MINUS in name


def _lines(
    table: pd.DataFrame,
    leading: pd.DataFrame,
    columns: Mapping[str, tuple[str, str]],
    *,
    caption: str,
    heading: str,
    plural: str,
) -> Table:
    """Return a line for each of the ``leading`` rows, by layer."""
    present = set(zip(table["metric"], table["null"], strict=True))
    measured = {label: which for label, which in columns.items() if which in present}
    lines = []
    layers = list(dict.fromkeys(leading["layer"]))
    for layer in layers:
        for name in leading[leading["layer"] == layer]["checkpoint"]:
            of_line = table[(table["checkpoint"] == name) & (table["layer"] == layer)].to_dict("records")
            rows = {(row["metric"], row["null"]): row for row in of_line}
            cells = [value(rows.get(which), signed=is_difference(name)) for which in measured.values()]
            images = leading[(leading["layer"] == layer) & (leading["checkpoint"] == name)]["images"]
            lines.append([TableCell(layer), TableCell(name), *cells, counts([images.max()])])
    return Table(caption, ["layer", heading, *measured, plural], lines, keys=2, place=1, details=1)
