"""What is printed of a run: the verdict in words, then the headline of each layer; with --full all that is read first.

All of it is in table.csv.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli import tables
from moeprobe.cli.cells import on_screen
from moeprobe.cli.screen import console
from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics import registry
from moeprobe.metrics.reading_order import output_along_severity
from moeprobe.results.layouts import by_view as variants
from moeprobe.results.layouts import few_shots as layouts
from moeprobe.results.phrases import ATTRIBUTION, attribution
from moeprobe.results.tables import FLOORS
from moeprobe.studies.report.headlines import Found, Which, find
from moeprobe.studies.report.reading import Run, in_memory
from moeprobe.studies.report.summary import sentences_of, sentences_on

if TYPE_CHECKING:
    from moeprobe.results.folder import Result

_MORE = (
    "All that was measured: --full. Intervals are for one number at a time; for a verdict over all layers: moeprobe "
    "compare."
)
# More layers than this are lines of a table, not columns.
_MOST_COLUMNS = 4
# In a narrower window the intervals of few-shot accuracy stand below their values.
_STACKED = 130
Printed = list[Table | str]


def side_by_side(result: "Result", *, title: str, full: bool) -> Printed:
    """Return what is shown of checkpoints side by side; everything with ``full``."""
    headlines = _headlines(result)
    run, zero = _run(result), _zeros(headlines)
    if full or not headlines:
        said = [*_verdict(run, headlines, zero), *sentences_on(run)]
        return [*said, *tables.side_by_side(result, title=title)]
    metrics = {which for which in (item.headline.which for item in headlines) if which not in zero}
    table = tables.side_by_side(result, title=title, only=metrics) if metrics else []
    said = [*_verdict(run, headlines, zero), *sentences_on(run), *_sentence_on(zero, result)]
    return [*said, *table, _MORE]


def few_shots(result: "Result") -> Printed:
    """Return what is shown of few-shot accuracy: all of it."""
    layout = layouts.few_shots(result.table, result.comparison, modality=modality_of(result.table["tokens"]))
    if layout is None:
        return []
    stacked = console().width < _STACKED
    verdict = _verdict(_run(result), _headlines(result), set())
    return [*verdict, *on_screen(layout, title=layout.caption, stacked=stacked), layout.note]


def by_view(result: "Result", *, title: str) -> Printed:
    """Return what is shown of variants of a run: sentences, and a line for each of them."""
    layout = variants.by_view(result.table, caption=title)
    stacked = console().width < _STACKED
    said: Printed = [*sentences_on(_run(result)), *on_screen(layout, title=layout.caption, stacked=stacked)]
    return [*said, layout.note] if layout.note else said


def along_severity(result: "Result", *, title: str, full: bool) -> Printed:
    """Return what is shown of a sweep; everything with ``full``."""
    headlines = _headlines(result)
    kappa = next((item for item in headlines if registry.find(item.headline.which[0]).kind == "kappa"), None)
    if full or kappa is None:
        return [*_verdict(_run(result), headlines, set()), *tables.along_severity(result, title=title)]
    result = tables.of_all_experts(result)
    result = dataclasses.replace(result, table=result.table[~result.table["view"].isin(FLOORS)])
    which = kappa.headline.which
    named = f"{title}: {registry.find(which[0]).full_label(which[1])}"
    layers = [name for name in dict.fromkeys(result.table["layer"]) if name]
    parts: Printed = [*_verdict(_run(result), headlines, set())]
    if len(layers) <= _MOST_COLUMNS:
        by_layer = _moved(
            result, lambda table: table[_is(table, which)].assign(metric=table["layer"], layer="", null="")
        )
        parts += tables.severity_tables(
            by_layer, by_layer.table, tuple((name, "", name) for name in layers), named
        )
    else:
        at = result.table["severity"].max()
        strongest = _moved(result, lambda table: table[table["severity"] == at], exact=False)
        parts += tables.side_by_side(
            strongest, title=f"{named}, at severity {at:g}, the strongest", only={which}
        )
    output = _moved(result, lambda table: table[table["layer"] == ""])
    if len(output.table):
        columns = tuple(
            column for column in output_along_severity() if registry.find(column[0]).direction > 0
        )
        parts += tables.severity_tables(output, output.table, columns, f"{title}: output")
        parts += _attributed(output, title)
    return [*parts, _MORE]


def _attributed(output: "Result", title: str) -> list[Table]:
    gates = output.sidecar["request"].get("replayed_gates")
    if not gates:
        return []
    return [
        table
        for name, columns in ATTRIBUTION.items()
        for attributed in [_moved(output, partial(_of_metrics, metrics=[metric for metric, _, _ in columns]))]
        for table in tables.severity_tables(
            attributed, attributed.table, columns, f"{title}: {attribution(name, gates)}"
        )
    ]


def _of_metrics(table: pd.DataFrame, *, metrics: list[str]) -> pd.DataFrame:
    return table[table["metric"].isin(metrics)]


def _run(result: "Result") -> Run:
    result = tables.of_all_experts(result)
    return in_memory(result.table, result.comparison, result.sidecar)


def _headlines(result: "Result") -> list[Found]:
    """Return the headlines of a result that it has numbers of."""
    return [item for item in find(_run(result)) if item.rows[item.headline.which]]


def _zeros(headlines: list[Found]) -> set[Which]:
    """Return the headlines that are 0 exactly, wherever and however often they were measured."""
    rows: dict[Which, list[float]] = {}
    for item in headlines:
        # Not by the interval, which leaves open what other images may show, even where nothing can.
        rows.setdefault(item.headline.which, []).extend(
            row["value"] for row in item.rows[item.headline.which]
        )
    return {which for which, values in rows.items() if not any(values)}


def _verdict(run: Run, headlines: list[Found], zero: set[Which]) -> list[str]:
    """Return the sentences of the first headline that is not 0 by construction."""
    first = next((item for item in headlines if item.headline.which not in zero), None)
    return [] if first is None else sentences_of(run, first)


def _sentence_on(zero: set[Which], result: "Result") -> list[str]:
    """Return a sentence about exchanges that change nothing; none for other numbers that happen to be 0."""
    from moeprobe.probes.contagion.figure import unchanged, zeros

    names = unchanged(result.table)
    return [f"{zeros(names)}."] if names and zero else []


def _is(table: pd.DataFrame, which: Which) -> pd.Series:
    return (table["metric"] == which[0]) & (table["null"] == which[1]) & table["tokens"].isin(ORDINARY)


def _moved(
    result: "Result", change: Callable[[pd.DataFrame], pd.DataFrame], *, exact: bool = True
) -> "Result":
    """Return a result whose tables are changed; without the clean input where it is 0 or 1 exactly (``exact``)."""
    table = change(result.table)
    comparison = None if result.comparison is None else change(result.comparison)
    if exact and len(table):
        clean = table["severity"].min()
        clean_values = set(table[table["severity"] == clean]["value"])
        if clean_values in ({0.0}, {1.0}) and table["severity"].nunique() > 1:
            table = table[table["severity"] != clean]
            if comparison is not None:
                comparison = comparison[comparison["severity"] != clean]
    return dataclasses.replace(result, table=table, comparison=comparison)
