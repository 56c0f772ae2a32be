"""Checkpoints next to one another: a line per layer and metric, a column per checkpoint; in whole and in short."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.metrics.registry import agreements, compared_first, find
from moeprobe.results.layouts.cells import Table, TableCell, counts, severity, severity_heading, value
from moeprobe.results.tables import FLOORS, agreement_of, by_first_seen, modality_of_table, set_match_of

_PLACE = ["checkpoint", "layer", "tokens", "view", "severity"]
# Cosines and distances are computed in float32.
_ROUNDING = 1e-6
_KEYS = ("layer", "tokens", "metric", "null", "view", "severity")
Row = dict[str, Any]
Pair = tuple[str, str]


def side_by_side_table(
    table: pd.DataFrame,
    comparison: pd.DataFrame | None,
    pairs: Sequence[Pair],
    *,
    caption: str,
    modality: Modality,
    severities: bool = True,
    folded: bool = False,
) -> Table:
    """Return the rows of a table as lines, with the differences of ``pairs`` (checkpoint, reference).

    ``severities`` says whether a severity has a column, where there is any.
    """
    repeats = repetitions(table)
    # As an array: an empty list would select no columns in place of no rows.
    table = table[np.array([find(name).metric.name not in repeats for name in table["metric"]], dtype=bool)]
    checkpoints = list(dict.fromkeys(table["checkpoint"]))
    with_layers = bool((table["layer"] != "").any())
    # Without layers, kinds of tokens tell lines apart where there are several.
    with_tokens = not with_layers and table["tokens"].nunique() > 1
    with_severity = severities and bool(table["severity"].notna().any())
    steps = severity_heading(table.loc[table["severity"].notna(), "metric"])
    with_views = table["view"].nunique() > 1
    lines: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in by_first_seen(table, ("view", "layer", "tokens")).to_dict("records"):
        lines.setdefault(_key(row), {})[row["checkpoint"]] = row
    for row in [] if comparison is None else comparison.to_dict("records"):
        lines.get(_key(row), {})[row["checkpoint"], row["reference"]] = row
    rows = []
    # A κ without the line of its metric above it, beside that of another metric, has to name it.
    several = len({find(name).metric.name for name in table["metric"]} - set(table["metric"])) > 1
    for (layer, tokens, metric, null, view, at), row_of in lines.items():
        form = find(metric)
        short = form.full_label(null, modality) if several else form.label(null, modality)
        cells = (
            [TableCell(layer or ("all layers" if tokens else "output")), TableCell(tokens)]
            if with_layers
            else [TableCell(tokens or "all")]
            if with_tokens
            else []
        )
        cells += [TableCell(view)] if with_views else []
        cells += [severity(at)] if with_severity else []
        cells += [TableCell(form.full_label(null, modality), screen=short)]
        cells += [value(row_of.get(name)) for name in checkpoints]
        cells += [value(row_of.get(pair), signed=True) for pair in pairs]
        measured = [row_of[name] for name in checkpoints if name in row_of]
        rows.append([*cells, *(counts(row[what] for row in measured) for what in ("images", "trials"))])
    leading = ["layer", "tokens"] if with_layers else ["tokens"] if with_tokens else []
    leading += (["view"] if with_views else []) + ([steps] if with_severity else [])
    columns = [*leading, "metric", *checkpoints, *(f"{name} − {reference}" for name, reference in pairs)]
    return Table(
        caption,
        [*columns, modality.units, "trials"],
        rows,
        _left_out(repeats),
        folded=folded,
        keys=len(leading) + 1,
        place=len(leading),
        details=2,
    )


def repetitions(table: pd.DataFrame) -> list[str]:
    """Return the metrics that repeat the top-1 match: with one expert per token each value is it, or 1 minus it.

    Not where a token without room makes a difference, nor of checkpoints of which one has several experts per token.
    """
    match = agreements()[0].name
    raw = table[["metric", *_PLACE, "value"]]
    base = raw[table["metric"] == match].set_index(_PLACE)["value"]
    several = (
        pd.to_numeric(table["top_k"], errors="coerce") != 1 if "top_k" in table else table["metric"] == match
    )
    if base.empty or several[table["metric"] == match].any():
        return []
    names = [name for name in dict.fromkeys(table["metric"]) if find(name).metric.one_expert]
    return [
        name
        for name in names
        if find(name).kind == "raw" and _repeats(raw[raw["metric"] == name].set_index(_PLACE)["value"], base)
    ]


def _repeats(values: pd.Series, match: pd.Series) -> bool:
    if not values.index.isin(match.index).all():
        return False
    match = match.reindex(values.index)
    return any(
        np.allclose(values, side, rtol=0, atol=_ROUNDING, equal_nan=True) for side in (match, 1 - match)
    )


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(find(name).metric.label for name in names)
    return (
        f"With one expert per token these are the {find(agreements()[0].name).metric.label}, or 1 minus it, and left "
        f"out here: {listed}. table.csv has them."
    )


def _key(row: Row) -> tuple[Any, ...]:
    """Return what lines of two checkpoints share; a severity that there is not is None, since NaN is not itself."""
    return tuple(None if row[name] != row[name] else row[name] for name in _KEYS)


def summary(table: pd.DataFrame, comparison: pd.DataFrame | None = None) -> Table:
    """Return a line per layer, severity and metric, and a column per checkpoint and difference.

    Args:
        table: of a run, with the columns of ``columns.COLUMNS``.
        comparison: its paired differences.
    """
    values, compared = _overall_rows(table), None if comparison is None else _overall_rows(comparison)
    metrics = list(zip(values["metric"], values["null"], strict=True))
    first = compared_first(agreement_of(table), set_match_of(table))
    read = [which in first for which in metrics]
    if not any(read):
        read = [null == "" for _, null in metrics]
    pairs = [] if compared is None else list(zip(compared["checkpoint"], compared["reference"], strict=True))
    return side_by_side_table(
        values[np.array(read, dtype=bool)],
        compared,
        list(dict.fromkeys(pairs)),
        caption="What was measured",
        modality=modality_of_table(table, data=table["dataset"].iloc[0]),
    )


def _overall_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all experts and ordinary tokens together, without the noise floor and single draws."""
    keep = table["expert"].isna() & table["tokens"].isin([*ORDINARY, ""]) & ~table["view"].isin(FLOORS)
    return table[keep & table["draw"].isna()] if "draw" in table else table[keep]
