"""What is printed of a run: the verdict in words, then the headline of each layer; with --full all that is read first.

All of it is in table.csv.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from moeprobe.cli.front import tables
from moeprobe.cli.front.screen import console
from moeprobe.cli.front.tables import on_screen
from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics import registry
from moeprobe.metrics.reading_order import output_along_severity
from moeprobe.probes.registry import conclusions_of, headlines_of
from moeprobe.results.headlines.collected import HeadlineValues
from moeprobe.results.headlines.declared import Which
from moeprobe.results.headlines.run_tables import RunTables
from moeprobe.results.headlines.sentences import sentences_of
from moeprobe.results.layouts import by_view as variants
from moeprobe.results.layouts import few_shots as layouts
from moeprobe.results.layouts.agreement import agreement_table
from moeprobe.results.phrases import ATTRIBUTION, attribution
from moeprobe.results.tables import FLOORS

if TYPE_CHECKING:
    from moeprobe.results.folder import Result

_MORE = "All metrics: --full. Intervals are for one number at a time; for a verdict over all layers: moeprobe compare."
# More layers than this are lines of a table, not columns.
_MOST_COLUMNS = 4
# In a narrower window the intervals of few-shot accuracy stand below their values.
_STACKED = 130
Printed = list[Table | str]


def side_by_side(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for checkpoints side by side; everything with ``full``."""
    run = _run(result)
    headlines = _headlines(run)
    zero = _zeros(headlines)
    sentences = [*_verdict(run, headlines, zero), *conclusions_of(run)]
    if full or not headlines:
        return [*sentences, *tables.side_by_side(result, title=title)]
    agreeing = _agreeing(run, headlines)
    metrics = {headline.which for headline in headlines if headline not in agreeing} - zero
    parts: Printed = [*sentences, *_agreement(run, agreeing, title=title)]
    if metrics:
        parts += tables.side_by_side(result, title=title, only=metrics)
    return [*parts, _MORE]


def _agreeing(run: RunTables, headlines: list[HeadlineValues]) -> list[HeadlineValues]:
    """Return the headlines about agreement, whose match and chance stand beside κ; none where views differ."""
    if run.table is None or run.table["view"].nunique() > 1:
        return []
    return [
        headline
        for headline in headlines
        if headline.severity is None and registry.find(headline.declared.metric).kind == "kappa"
    ]


def _agreement(run: RunTables, headlines: list[HeadlineValues], *, title: str) -> list[Table]:
    """Return match, chance and κ of each layer side by side."""
    if run.table is None or not headlines:
        return []
    layout = agreement_table(
        run.table,
        run.comparison,
        list(dict.fromkeys(registry.find(headline.declared.metric).metric.name for headline in headlines)),
        caption=title,
        modality=run.modality,
    )
    stacked = console().width < _STACKED
    return [] if layout is None else on_screen(layout, title=title, stacked=stacked)


def few_shots(result: "Result") -> Printed:
    """Return the output for few-shot accuracy: all of it."""
    layout = layouts.few_shots(result.table, result.comparison, modality=modality_of(result.table["tokens"]))
    if layout is None:
        return []
    stacked = console().width < _STACKED
    run = _run(result)
    verdict = _verdict(run, _headlines(run), set())
    return [*verdict, *on_screen(layout, title=layout.caption, stacked=stacked), layout.note]


def by_view(result: "Result", *, title: str) -> Printed:
    """Return the output for variants of a run: sentences, and a line for each of them."""
    layout = variants.by_view(result.table, caption=title)
    stacked = console().width < _STACKED
    parts: Printed = [
        *conclusions_of(_run(result)),
        *on_screen(layout, title=layout.caption, stacked=stacked),
    ]
    return [*parts, layout.note] if layout.note else parts


def along_severity(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for a sweep; everything with ``full``."""
    run = _run(result)
    headlines = _headlines(run)
    kappas = {
        headline.which: None
        for headline in headlines
        if registry.find(headline.declared.metric).kind == "kappa"
    }
    parts: Printed = [*_verdict(run, headlines, set())]
    if full or not kappas:
        return [*parts, *tables.along_severity(result, title=title)]
    result = tables.of_all_experts(result)
    result = dataclasses.replace(result, table=result.table[~result.table["view"].isin(FLOORS)])
    for which in kappas:
        parts += _of_layers(result, which, f"{title}: {registry.find(which[0]).full_label(which[1])}")
    output = _change_tables(result, lambda table: table[table["layer"] == ""])
    if len(output.table):
        columns = tuple(
            column for column in output_along_severity() if registry.find(column[0]).direction > 0
        )
        parts += tables.severity_tables(output, output.table, columns, f"{title}: output")
        parts += _attributed(output, title)
    return [*parts, _MORE]


def _of_layers(result: "Result", which: Which, title: str) -> list[Table | str]:
    """Return a number along the severities, a column per layer; of many layers at the strongest alone, a line each."""
    layers = [name for name in dict.fromkeys(result.table["layer"]) if name]
    if len(layers) <= _MOST_COLUMNS:
        by_layer = _change_tables(
            result, lambda table: table[_is(table, which)].assign(metric=table["layer"], layer="", null="")
        )
        columns = tuple((name, "", name) for name in layers)
        return [*tables.severity_tables(by_layer, by_layer.table, columns, title)]
    at = result.table["severity"].max()
    strongest = _change_tables(result, lambda table: table[table["severity"] == at], exact=False)
    return tables.side_by_side(strongest, title=f"{title}, at severity {at:g}, the strongest", only={which})


def _attributed(output: "Result", title: str) -> list[Table]:
    gates = output.sidecar.request.replayed_gates
    if not gates:
        return []
    return [
        table
        for name, columns in ATTRIBUTION.items()
        for attributed in [
            _change_tables(output, partial(_of_metrics, metrics=[metric for metric, _, _ in columns]))
        ]
        for table in tables.severity_tables(
            attributed, attributed.table, columns, f"{title}: {attribution(name, gates)}"
        )
    ]


def _of_metrics(table: pd.DataFrame, *, metrics: list[str]) -> pd.DataFrame:
    return table[table["metric"].isin(metrics)]


def _run(result: "Result") -> RunTables:
    result = tables.of_all_experts(result)
    return RunTables(sidecar=result.sidecar, table=result.table, comparison=result.comparison)


def _headlines(run: RunTables) -> list[HeadlineValues]:
    """Return the headlines of a run that it has numbers of."""
    return [headline for headline in headlines_of(run) if headline.rows[headline.which]]


def _zeros(headlines: list[HeadlineValues]) -> set[Which]:
    """Return the headlines that are 0 exactly, wherever and however often they were measured."""
    rows: dict[Which, list[float]] = {}
    for headline in headlines:
        # Not by the interval, which leaves open what other images may show, even where nothing can.
        rows.setdefault(headline.which, []).extend(row["value"] for row in headline.rows[headline.which])
    return {which for which, values in rows.items() if not any(values)}


def _verdict(run: RunTables, headlines: list[HeadlineValues], zero: set[Which]) -> list[str]:
    """Return the sentences of the first headline that is not 0 by construction, and of those read beside it."""
    nonzero = [headline for headline in headlines if headline.which not in zero]
    beside = itertools.takewhile(lambda headline: headline.declared.beside, nonzero[1:])
    return [sentence for headline in (*nonzero[:1], *beside) for sentence in sentences_of(run, headline)]


def _is(table: pd.DataFrame, which: Which) -> pd.Series:
    return (table["metric"] == which[0]) & (table["null"] == which[1]) & table["tokens"].isin(ORDINARY)


def _change_tables(
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
