"""A comparison on the screen: its tables, what they rest on, and what fails."""

import dataclasses
import math
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli.front.screen import console
from moeprobe.cli.front.tables import on_screen
from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.results.layouts import verdicts
from moeprobe.results.layouts.cells import severity_heading
from moeprobe.results.numbers import end

if TYPE_CHECKING:
    from moeprobe.studies.compare import Comparison

# Comparisons that fail a gate; more are counted.
_MOST_FAILURES = 10
# In a narrower window intervals stand below their values, and images and trials in reports alone.
_STACKED = 120


def tables(table: pd.DataFrame, *, extra: str | None = None, full: bool = True) -> list[Table]:
    """Return a table per metric; without ``full``, for the leading metrics alone."""
    narrow = console().width < _STACKED
    return [
        part
        for layout in verdicts.tables(table, extra=extra)
        if full or not layout.folded
        for part in on_screen(
            dataclasses.replace(layout, details=2 if narrow else 0), title=layout.caption, stacked=narrow
        )
    ]


def overview(table: pd.DataFrame, *, extra: str | None = None) -> list[Table]:
    """Return the table that a comparison opens with: a line per metric."""
    layout = verdicts.overview(table, extra=extra)
    narrow = console().width < _STACKED
    return on_screen(layout, title=layout.caption, stacked=narrow) if layout.rows else []


def footing(comparison: "Comparison") -> str:
    """Return what the numbers rest on, a line for each."""
    request, table = comparison.sidecar.request, comparison.table
    probed = request.probe
    low, high = min(table["images"]), max(table["images"])
    images = f"{high:,}" if low == high else f"{low:,}–{high:,}"
    modality = modality_of(table["tokens"])
    units = modality.plural
    parts = [
        f"{images} {units if high != 1 else modality.name} of {probed.data} {probed.split}".rstrip(),
        f"view {probed.view_name}",
        f"seed {probed.seed}",
        f"{len(table):,} differences of {table['metric'].nunique()} metrics in all",
    ]
    parts = ["; ".join(parts)]
    if table["sim_low"].notna().any():
        parts += [
            f"[low, high]: simultaneous 95 % interval over all layers and severities of a metric (max-|t| over "
            f"2,000 bootstrap resamples of {units}, paired)",
            f"p: paired t test over {units}, Holm-corrected",
            f"same: inside ±{request['margin']:g}",
            f"detectable: the minimum difference that these {units} detect at 80 % power",
        ]
    else:
        parts.append(f"no intervals: they need at least 20 {units}")
    alone = [
        name
        for name in comparison.sidecar.checkpoints
        if name not in {*table["checkpoint"], *table["reference"]}
    ]
    if alone:
        parts.append(f"not compared (no partner with the same training seed or layers): {', '.join(alone)}")
    return "\n".join(f"{part}." for part in parts)


def _why(row: pd.Series) -> str:
    if row["verdict"] in ("higher", "lower"):
        return "chance is all but 1, or another one for the reference has another number of experts"
    return str(row["verdict"])


def _location(row: pd.Series, modality: Modality) -> str:
    """Return where a difference was measured: layer, tokens, null, severity."""
    parts = [
        row["layer"],
        verdicts.tokens_of(row["tokens"], modality),
        f"null {row['null']}" if row["null"] else "",
        "" if pd.isna(row["severity"]) else f"{severity_heading([row['metric']])} {row['severity']:g}",
    ]
    return ", ".join(part for part in parts if part)


def failures(comparison: "Comparison", metric: str, allowed: float | None = None) -> str:
    """Return the outcome of --fail-if-worse, or of --fail-unless-no-worse-than with ``allowed``.

    A sentence, and a line for each of the first comparisons that failed.
    """
    rows = comparison.failures
    flags = f"--fail-if-worse {metric}"
    if allowed is not None:
        flags += f" --fail-unless-no-worse-than {allowed:g}"
    if rows.empty:
        what = "it is worse nowhere" if allowed is None else f"it is worse by {allowed:g} nowhere"
        return f"{flags}: passed; {what}."
    total = int((comparison.table["metric"] == metric).sum())
    lines = [f"{flags}: failed in {len(rows)} of {total} comparison{'' if total == 1 else 's'}."]
    for _, row in rows.head(_MOST_FAILURES).iterrows():
        position = _location(row, modality_of(comparison.table["tokens"]))
        what = f"worse by {abs(row['value']):.3f}"
        if allowed is not None and not math.isnan(row["sim_low"]):
            low, high = (end(row[name], signed=True) for name in ("sim_low", "sim_high"))
            what = f"may be worse by {allowed:g} [{low}, {high}]"
        elif row["judgement"] != "worse":
            what = "collapsed" if row["collapsed"] == "checkpoint" else f"cannot be judged ({_why(row)})"
        lines.append(f"  {row['checkpoint']} {what}" + (f" ({position})" if position else ""))
    if len(rows) > _MOST_FAILURES:
        lines.append(f"  … and {len(rows) - _MOST_FAILURES} more; --json lists all.")
    return "\n".join(lines)
