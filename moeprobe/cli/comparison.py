"""A comparison on the screen: a table per headline metric, then the verdicts."""

import math
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli.fit import fit
from moeprobe.cli.screen import console
from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics.reading_order import compared_along_severities, compared_first
from moeprobe.metrics.registry import find
from moeprobe.results.numbers import number
from moeprobe.results.tables import agreement_of

if TYPE_CHECKING:
    from moeprobe.studies.compare import Comparison

# Comparisons that fail a gate; more are counted.
_MOST_FAILURES = 10


def _headlines(table: pd.DataFrame, extra: str | None) -> pd.DataFrame:
    """Return the rows that are read first (patches and output), the metric asked about among them, family by family."""
    first_read = compared_first(agreement_of(table))
    order = {key: place for place, key in enumerate(first_read)}
    keys = list(zip(table["metric"], table["null"], strict=True))
    first = pd.Series([key in order for key in keys], index=table.index) & table["tokens"].isin(
        [*ORDINARY, ""]
    )
    # Of a run without any of them (jumps, say) everything is read.
    shown = table[first | (table["metric"] == extra)] if first.any() else table
    place = [order.get(key, len(order)) for key in zip(shown["metric"], shown["null"], strict=True)]
    return shown.assign(place=place).sort_values("place", kind="stable").drop(columns="place")


def tables(table: pd.DataFrame, *, extra: str | None = None, full: bool = True) -> list[Table]:
    """Return a table per metric: a line per layer, severity and pair; without ``full`` of what is read first alone."""
    shown = _headlines(table, extra)
    if not full:
        first = shown["metric"].iloc[0]
        shown = shown[shown["metric"].isin([first, extra])]
    if shown["severity"].notna().any():
        along = compared_along_severities(agreement_of(table))
        shown = shown[shown["metric"].isin([*along, extra])]
    return [
        part
        for key, rows in shown.groupby(["metric", "null", "tokens"], sort=False)
        for part in _tables(rows, _title(*key))
    ]


def _title(metric: str, null: str, tokens: str) -> str:
    form = find(metric)
    name = form.label(null, modality_of([tokens])).strip()
    if form.kind == "kappa":
        name = f"{form.metric.label}, {name}"
    of = _TOKENS.get(tokens, f"{tokens} patches")
    return f"{name} ({metric}{of and ', '}{of})"


def _tables(rows: pd.DataFrame, title: str) -> list[Table]:
    table = Table(title=title, title_justify="left", title_style="bold")
    cells = [name for name in ("layer", "severity") if rows[name].notna().any() and (rows[name] != "").any()]
    for name in cells:
        table.add_column(name, justify="right" if name == "severity" else "left")
    pairs = list(dict.fromkeys(zip(rows["checkpoint"], rows["reference"], strict=True)))
    if len(pairs) > 1:
        table.add_column("reference")
        table.add_column("checkpoint")
    # A single pair is the heading of its values: the reference first, as in all tables.
    sides = ("reference's", "value") if len(pairs) > 1 else pairs[0][::-1]
    for name in (*sides, "difference [simultaneous 95 %]", "p (Holm)"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    pair = None
    for _, row in rows.iterrows():
        here = (row["checkpoint"], row["reference"])
        if pair not in (None, here) and len(rows) > len(pairs):
            table.add_section()
        pair = here
        place = [f"{row[name]:g}" if name == "severity" else row[name] for name in cells]
        values = [number(row["reference_value"]), number(row["checkpoint_value"])]
        table.add_row(
            *place,
            *(here[::-1] if len(pairs) > 1 else ()),
            *values,
            _difference(row),
            _p(row["p_holm"]),
            _verdict(row),
        )
    return fit(table, keys=len(cells) + (2 if len(pairs) > 1 else 0), width=console().width)


def _difference(row: pd.Series) -> str:
    text = number(row["value"], signed=True)
    if math.isnan(row["sim_low"]):
        return text
    return f"{text} [{number(row['sim_low'], signed=True)}, {number(row['sim_high'], signed=True)}]"


def _p(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(row: pd.Series) -> str:
    if row["verdict"] == "collapsed" and row["collapsed"]:
        return f"{'both' if row['collapsed'] == 'both' else row[row['collapsed']]} collapsed"
    if row["verdict"] == "cannot tell" and not math.isnan(row["detectable"]):
        return f"cannot tell (detectable: {row['detectable']:.3f})"
    return f"{row['judgement']} ({row['verdict']})" if row["judgement"] else row["verdict"]


def sentences(found: "Comparison", *, extra: str | None = None) -> list[str]:
    """Return the sentence of each family that is shown."""
    keys = ["checkpoint", "reference", "tokens", "metric", "null"]
    shown = _headlines(found.table, extra).drop_duplicates(keys)[keys]
    rows = shown.merge(found.verdicts, on=keys, how="left")
    return [f"{_title(*key)}: {text}" for *key, text in rows[["metric", "null", "tokens", "sentence"]].values]


def footing(found: "Comparison") -> str:
    """Return what the numbers rest on, a line for each."""
    request, table = found.sidecar["request"], found.table
    probed = request["probe"]
    low, high = min(table["images"]), max(table["images"])
    images = f"{high:,}" if low == high else f"{low:,}–{high:,}"
    modality = modality_of(table["tokens"])
    units = modality.plural
    parts = [
        f"{images} {units if high != 1 else modality.name} of {probed['data']} {probed['split']}",
        f"view {probed['view']['name']}",
        f"seed {probed['seed']}",
        f"{len(table):,} differences of {table['metric'].nunique()} metrics in all",
    ]
    parts = ["; ".join(parts)]
    if table["sim_low"].notna().any():
        parts += [
            f"[low, high]: differences of the same {units}, 95 % for all layers and severities of one metric at once "
            f"(max-|t| over 2,000 bootstrap resamples of {units})",
            f"p: t over {units}, Holm within the same",
            f"no difference: inside ±{request['margin']:g}",
            f"detectable: the smallest difference that these {units} find four times in five",
        ]
    else:
        parts.append(f"no intervals: they need at least 20 {units}")
    alone = [
        name
        for name in found.sidecar["checkpoints"]
        if name not in {*table["checkpoint"], *table["reference"]}
    ]
    if alone:
        parts.append(f"not compared (no partner with the same training seed or layers): {', '.join(alone)}")
    return "\n".join(f"{part}." for part in parts)


def _why(row: pd.Series) -> str:
    if row["verdict"] in ("higher", "lower"):
        return "chance is all but 1, or another one for the reference has another number of experts"
    return str(row["verdict"])


_TOKENS = {"": "", "patch": "patches", "token": "tokens", "prefix": "CLS"}


def _place(row: pd.Series) -> str:
    """Return where a difference was measured: layer, tokens, null, severity."""
    parts = [
        row["layer"],
        _TOKENS.get(row["tokens"], f"{row['tokens']} patches"),
        f"null {row['null']}" if row["null"] else "",
        "" if pd.isna(row["severity"]) else f"severity {row['severity']:g}",
    ]
    return ", ".join(part for part in parts if part)


def failures(found: "Comparison", metric: str, allowed: float | None = None) -> str:
    """Return what --fail-if-worse comes to, or --fail-unless-no-worse-than of what is ``allowed``.

    A sentence, and a line for each of the first comparisons that failed.
    """
    rows = found.failures
    asked = f"--fail-if-worse {metric}"
    if allowed is not None:
        asked += f" --fail-unless-no-worse-than {allowed:g}"
    if rows.empty:
        what = "it is worse nowhere" if allowed is None else f"it is worse by {allowed:g} nowhere"
        return f"{asked}: passed; {what}."
    total = int((found.table["metric"] == metric).sum())
    lines = [f"{asked}: failed in {len(rows)} of {total} comparison{'' if total == 1 else 's'}."]
    for _, row in rows.head(_MOST_FAILURES).iterrows():
        place = _place(row)
        what = f"worse by {abs(row['value']):.3f}"
        if allowed is not None and not math.isnan(row["sim_low"]):
            low, high = (number(row[end], signed=True) for end in ("sim_low", "sim_high"))
            what = f"may be worse by {allowed:g} [{low}, {high}]"
        elif row["judgement"] != "worse":
            what = "collapsed" if row["collapsed"] == "checkpoint" else f"cannot be judged ({_why(row)})"
        lines.append(f"  {row['checkpoint']} {what}" + (f" ({place})" if place else ""))
    if len(rows) > _MOST_FAILURES:
        lines.append(f"  … and {len(rows) - _MOST_FAILURES} more; --json lists all.")
    return "\n".join(lines)
