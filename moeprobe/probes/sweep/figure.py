"""Curves along a severity: match with the clean image, confidence, and the model's output."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.analyses.attribution import ACCURACY as ACCURACY_PARTS
from moeprobe.metrics.analyses.attribution import CLASS_PROBABILITY, LOGIT_DISTANCE
from moeprobe.metrics.analyses.confidence import GATE_HIGHEST
from moeprobe.metrics.analyses.output import ACCURACY, PREDICTION_AGREEMENT
from moeprobe.metrics.analyses.unserved import UNSERVED
from moeprobe.metrics.declaration import CHANCE, KAPPA, Metric, MetricFamily
from moeprobe.metrics.registry import find, tokens_choose
from moeprobe.results.figures import panels
from moeprobe.results.tables import FLOORS, SHOWN_LAYERS, agreement_of

_COMPANIONS, _OUTPUT = (GATE_HIGHEST, UNSERVED), (ACCURACY, PREDICTION_AGREEMENT)
_CHANGES = (
    (CLASS_PROBABILITY, "change in probability\nof the clean prediction"),
    (LOGIT_DISTANCE, "distance of the scores\nfrom the clean ones"),
    (ACCURACY_PARTS, "change in accuracy"),
)
# Characters of a label next to a panel.
_LABEL = 15
_SHARES = (("features", "-", "o"), ("switching", "--", "s"))


def draw(
    table: pd.DataFrame,
    *,
    colors: Mapping[str, str],
    unit: str,
    gates: str | None = None,
    beside: pd.DataFrame | None = None,
) -> dict[str, Figure]:
    """Return the figures: routing (a column per layer) and output; ``unit`` belongs to the severity.

    Of more than ``SHOWN_LAYERS`` layers, layers are the x axis and every severity is a line. ``colors`` are of
    checkpoints. ``gates`` says how experts of replayed routings were weighted, if requested. ``beside`` has rows of
    another perturbation, with which the first is compared.
    """
    floors = table[table["view"].isin(FLOORS)]
    table = table[~table["view"].isin(FLOORS)]
    beside = table[:0] if beside is None else beside
    view = table["view"].iloc[0]
    figures = {}
    routing = panels.ordinary(table)
    rows = _rows_of_panels(routing, agreement_of(routing))
    if rows:
        routing_rows = routing[
            routing["metric"].isin([metric for metric, _ in rows])
            & routing["null"].isin(["", "pooled", "image"])
        ]
        title = f"Routing against the clean {modality_of(routing['tokens']).name}: {view}"
        if len(panels.layers(table)) > SHOWN_LAYERS:
            figure, mark = _over_layers(routing, rows, colors, unit), "bars"
            notes = ["In the table only: the noise floor"] if len(floors) else []
            notes += [f"In the table only: {name}" for name in dict.fromkeys(beside["view"])]
        else:
            figure, mark = _by_layer(routing, floors, panels.ordinary(beside), rows, colors, unit), "bands"
            least = panels.ordinary(panels.select(floors, metric=agreement_of(routing)))["value"].min()
            notes = ["Noise floor (arithmetic): 1, nothing to shade"] if least == 1 else []
        notes += panels.note_undrawn(table)
        figures["routing"] = panels.finish(figure, routing_rows, title=title, notes=notes, mark=mark)
    output = [_panel(metric) for metric in _OUTPUT if (table["metric"] == metric.name).any()]
    if output:
        figure, axes = panels.panels(1, len(output))
        for column, (metric, label) in enumerate(output):
            _curves(axes[0, column], table, metric, colors)
            _curves(axes[0, column], beside, metric, colors, is_beside=True)
            axes[0, column].set(ylabel=label, xlabel=unit)
        _severity_ticks(axes, table)
        _shares_axis(axes)
        routing_rows = table[table["metric"].isin([metric for metric, _ in output])]
        figures["output"] = panels.finish(figure, routing_rows, title=f"Output: {view}", mark="bands")
    changes = [
        (parts, label) for parts, label in _CHANGES if (table["metric"] == parts.make("switching").name).any()
    ]
    if changes:
        figure, axes = panels.panels(1, len(changes), sharey=False)
        for column, (changed, label) in enumerate(changes):
            _shares(axes[0, column], table, changed, colors)
            axes[0, column].set(ylabel=label, xlabel=unit)
        _severity_ticks(axes, table)
        parts = [changed.make(share).name for changed, _ in changes for share, _, _ in _SHARES]
        figures["attribution"] = panels.finish(
            figure,
            table[table["metric"].isin(parts)],
            title=f"Change of the output by features and by switching experts: {view}",
            notes=[f"Gates {gates}"],
            mark="bands",
        )
    return figures


def _by_layer(
    routing: pd.DataFrame,
    floors: pd.DataFrame,
    beside: pd.DataFrame,
    rows: Sequence[tuple[str, str]],
    colors: Mapping[str, str],
    unit: str,
) -> Figure:
    """Draw a column per layer, with the severity along the x axis."""
    layers, first = panels.layers(routing), agreement_of(routing)
    figure, axes = panels.panels(len(rows), len(layers))
    for column, layer in enumerate(layers):
        of_layer = panels.select(routing, layer=layer)
        for row, (metric, label) in enumerate(rows):
            panel = axes[row, column]
            _curves(panel, of_layer, metric, colors)
            _curves(panel, panels.select(beside, layer=layer), metric, colors, is_beside=True)
            if metric == first:
                _chance(panel, of_layer, f"{metric}{CHANCE}", "pooled", ":", "chance (pooled)", colors)
                floor = panels.ordinary(panels.select(floors, layer=layer, metric=metric))
                _floor(panel, floor)
            if find(metric).kind == "kappa":
                within = f"κ within the {modality_of(routing['tokens']).name}"
                _chance(panel, of_layer, metric, "image", "--", within, colors)
            panel.set_ylabel(label if column == 0 else "")
        axes[0, column].set_title(layer)
        axes[-1, column].set_xlabel(unit)
    _severity_ticks(axes, routing)
    _shares_axis(axes[[metric != UNSERVED.name for metric, _ in rows]])
    for panel in axes[[metric == UNSERVED.name for metric, _ in rows]].flat:
        panel.set_ylim(bottom=0)
    return figure


def _over_layers(
    routing: pd.DataFrame, rows: Sequence[tuple[str, str]], colors: Mapping[str, str], unit: str
) -> Figure:
    """Draw a column per checkpoint, with the layers along the x axis and a line per severity."""
    layers, checkpoints = panels.layers(routing), panels.checkpoints(routing)
    severities = sorted(set(routing["severity"].dropna()))
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(severities)))
    figure, axes = panels.panels(len(rows), len(checkpoints), width=5.4, height=2.6)
    for column, checkpoint in enumerate(checkpoints):
        for row, (metric, label) in enumerate(rows):
            panel = axes[row, column]
            of_metric = _rows(routing, checkpoint, metric, nulls=("", "pooled"))
            for severity, shade in zip(severities, shades, strict=True):
                panels.draw_over_layers(
                    panel,
                    of_metric[of_metric["severity"] == severity],
                    layers,
                    color=to_hex(shade),
                    label=f"{severity:g} ({unit})" if severity == severities[0] else f"{severity:g}",
                )
            panel.set_ylabel(label if column == 0 else "")
            panels.label_layers(panel, layers, with_label=row == len(rows) - 1)
        axes[0, column].set_title(checkpoint, color=colors[checkpoint])
    _shares_axis(axes[[metric != UNSERVED.name for metric, _ in rows]])
    return figure


def _severity_ticks(axes: np.ndarray, table: pd.DataFrame) -> None:
    """Put a tick at every severity that was measured, and label those with enough space."""
    measured = sorted(set(table["severity"].dropna()))
    gap = 0.13 * (measured[-1] - measured[0])
    labeled: list[float] = []
    for severity in measured:
        if not labeled or severity - labeled[-1] >= gap:
            labeled.append(severity)
    for panel in axes.flat:
        panel.set_xticks(labeled, [f"{severity:g}" for severity in labeled])
        panel.set_xticks(measured, minor=True)


def _rows_of_panels(routing: pd.DataFrame, first: str) -> list[tuple[str, str]]:
    """Return (metric, label) of each row: the shared agreement metric, its kappa, and companions."""
    kappa = find(f"{first}{KAPPA}")
    # Where all tokens choose, none is without an expert.
    companions = [
        _panel(metric) for metric in _COMPANIONS if metric is not UNSERVED or not tokens_choose(first)
    ]
    rows = [
        (first, find(first).full_label()),
        (kappa.name, f"{kappa.full_label('pooled')}\n(pooled)"),
        *companions,
    ]
    return [line for line in rows if (routing["metric"] == line[0]).any()]


def _panel(metric: Metric) -> tuple[str, str]:
    """Return the metric of a panel and its label."""
    return metric.name, textwrap.fill(metric.label, _LABEL)


def _shares_axis(axes: np.ndarray) -> None:
    """Let every row range from 0 (or lower, if anything is drawn there) to 1; only when all is drawn."""
    for row in axes[:, 0]:
        row.set_ylim(min(-0.03, row.get_ylim()[0]) if row.get_ylim()[0] < 0 else 0, 1.03)


def _curves(
    axes: Axes, table: pd.DataFrame, metric: str, colors: Mapping[str, str], *, is_beside: bool = False
) -> None:
    for checkpoint in panels.checkpoints(table):
        rows = _rows(table, checkpoint, metric, nulls=("", "pooled"))
        label = f"{checkpoint}: {table['view'].iloc[0]}" if is_beside else checkpoint
        _curve(axes, rows, colors[checkpoint], "x-." if is_beside else "o-", label=label)


def _curve(axes: Axes, rows: pd.DataFrame, color: str, style: str, *, label: str) -> None:
    """Draw values along the severity with their band."""
    x, value = rows["severity"].to_numpy(float), rows["value"].to_numpy(float)
    axes.plot(x, value, style, color=color, markersize=4, linewidth=1.5, label=label)
    low, high = (rows[end].to_numpy(float) for end in ("ci_low", "ci_high"))
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    panels.name_collapsed(axes, x, rows, color=color)


def _shares(axes: Axes, table: pd.DataFrame, changed: MetricFamily, colors: Mapping[str, str]) -> None:
    """Draw what features and switching have in the change of the output."""
    axes.axhline(0, color="#808080", linewidth=0.8)
    for checkpoint in panels.checkpoints(table):
        for share, line, mark in _SHARES:
            rows = _rows(table, checkpoint, changed.make(share).name, nulls=("",))
            _curve(axes, rows, colors[checkpoint], line + mark, label=f"{checkpoint}: {share}")


def _chance(
    axes: Axes,
    table: pd.DataFrame,
    metric: str,
    null: str,
    style: str,
    label: str,
    colors: Mapping[str, str],
) -> None:
    """Draw a thin line per checkpoint, of what depends on one chance level."""
    for checkpoint in panels.checkpoints(table):
        rows = _rows(table, checkpoint, metric, nulls=(null,))
        if len(rows):
            axes.plot(rows["severity"], rows["value"], style, color=colors[checkpoint], linewidth=1.2)
            # One entry per kind of line: its color says whose it is.
            axes.plot([], [], style, color="#606060", linewidth=1.2, label=label)


def _floor(axes: Axes, rows: pd.DataFrame) -> None:
    """Shade what the clean image misses of itself when it is run again, at worst."""
    lowest = rows["value"].min()
    if lowest < 1:
        axes.axhspan(lowest, 1, color="#808080", alpha=0.35, linewidth=0, label="noise floor (arithmetic)")


def _rows(table: pd.DataFrame, checkpoint: str, metric: str, *, nulls: Sequence[str]) -> pd.DataFrame:
    rows = panels.select(table, checkpoint=checkpoint, metric=metric)
    return rows[rows["null"].isin(list(nulls))].sort_values("severity")
