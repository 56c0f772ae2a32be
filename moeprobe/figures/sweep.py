"""Curves along a severity: match with the clean image, confidence, and the model's output."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moeprobe.figures import _parts
from moeprobe.medium import medium_of
from moeprobe.tables import FLOORS
from moeprobe.wording import full_label

_BESIDE = (("gate_highest", "highest gate"), ("unserved", "tokens without\nan expert"))
_OUTPUT = (("accuracy", "accuracy"), ("prediction_agreement", "same prediction\nas clean"))
_CHANGES = (
    ("class_probability", "change in probability\nof the clean prediction"),
    ("logit_distance", "distance of the scores\nfrom the clean ones"),
    ("accuracy", "change in accuracy"),
)
_SHARES = (("features", "-", "o"), ("switching", "--", "s"))


def draw(
    table: pd.DataFrame, *, colours: Mapping[str, str], unit: str, gates: str | None = None
) -> dict[str, Figure]:
    """Return the figures: routing (a column per layer) and output; ``unit`` is that of the severity.

    ``colours`` are of checkpoints. ``gates`` says how those of replayed routings were weighted, where that was asked.
    """
    floors = table[table["view"].isin(FLOORS)]
    table = table[~table["view"].isin(FLOORS)]
    view = table["view"].iloc[0]
    figures = {}
    layers = _parts.layers(table)
    routing = _parts.ordinary(table)
    first = _parts.agreement(routing)
    rows = _rows_of_panels(routing, first)
    if rows:
        figure, axes = _parts.panels(len(rows), len(layers))
        for column, layer in enumerate(layers):
            for row, (metric, label) in enumerate(rows):
                here = _parts.select(routing, layer=layer)
                _curves(axes[row, column], here, metric, colours)
                if metric == first:
                    _chance(axes[row, column], here, metric, colours)
                    _floor(
                        axes[row, column], _parts.ordinary(_parts.select(floors, layer=layer, metric=metric))
                    )
                axes[row, column].set_ylabel(label if column == 0 else "")
            axes[0, column].set_title(layer)
            axes[-1, column].set_xlabel(unit)
        _short_ticks(axes)
        _up_to_one(axes[[metric != "unserved" for metric, _ in rows]])
        drawn = routing[routing["metric"].isin([metric for metric, _ in rows])]
        title = (
            f"Routing against the clean {medium_of(routing['tokens']).name}: {view}{_parts.undrawn(table)}"
        )
        figures["routing"] = _parts.finish(figure, drawn, title=title, mark="bands")
    output = [(metric, label) for metric, label in _OUTPUT if (table["metric"] == metric).any()]
    if output:
        figure, axes = _parts.panels(1, len(output))
        for column, (metric, label) in enumerate(output):
            _curves(axes[0, column], table, metric, colours)
            axes[0, column].set(ylabel=label, xlabel=unit)
        _short_ticks(axes)
        _up_to_one(axes)
        figures["output"] = _parts.finish(figure, table, title=f"Output: {view}", mark="bands")
    changes = [
        (metric, label) for metric, label in _CHANGES if (table["metric"] == f"{metric}_switching").any()
    ]
    if changes:
        figure, axes = _parts.panels(1, len(changes), sharey=False)
        for column, (metric, label) in enumerate(changes):
            _shares(axes[0, column], table, metric, colours)
            axes[0, column].set(ylabel=label, xlabel=unit)
        _short_ticks(axes)
        title = f"What changes the output, features or switching experts? {view}, gates {gates}"
        figures["attribution"] = _parts.finish(figure, table, title=title, mark="bands")
    return figures


def _short_ticks(axes: np.ndarray) -> None:
    """Let severities stand apart from one another: few, and without zeros at the end."""
    for panel in axes.flat:
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter("{x:g}")


def _rows_of_panels(routing: pd.DataFrame, first: str) -> list[tuple[str, str]]:
    """Return (metric, label) of each row: the agreement that all share, its kappa, and what stands beside it."""
    kappa = full_label(f"{first}_kappa", "pooled").replace(" of ", " of\n", 1)
    # Where all tokens choose, none is without an expert.
    beside = [line for line in _BESIDE if line[0] != "unserved" or first != "top1_match"]
    rows = [(first, full_label(first, "")), (f"{first}_kappa", f"{kappa}\n(pooled)"), *beside]
    return [line for line in rows if (routing["metric"] == line[0]).any()]


def _up_to_one(axes: np.ndarray) -> None:
    """Let every row end at 1; only now that all is drawn, since an axis with one end set grows no more."""
    for row in axes[:, 0]:
        row.set_ylim(row.get_ylim()[0], 1.02)


def _curves(axes: Axes, table: pd.DataFrame, metric: str, colours: Mapping[str, str]) -> None:
    for checkpoint in _parts.checkpoints(table):
        rows = _rows(table, checkpoint, metric, nulls=("", "pooled"))
        _curve(axes, rows, colours[checkpoint], "o-", label=checkpoint)


def _curve(axes: Axes, rows: pd.DataFrame, colour: str, style: str, *, label: str) -> None:
    """Draw values along the severity with their band."""
    x, value = rows["severity"].to_numpy(float), rows["value"].to_numpy(float)
    axes.plot(x, value, style, color=colour, markersize=4, linewidth=1.5, label=label)
    low, high = (rows[end].to_numpy(float) for end in ("ci_low", "ci_high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    _parts.name_collapsed(axes, x, rows, colour=colour)


def _shares(axes: Axes, table: pd.DataFrame, metric: str, colours: Mapping[str, str]) -> None:
    """Draw what features and switching have in the change of the output."""
    axes.axhline(0, color="#808080", linewidth=0.8)
    for checkpoint in _parts.checkpoints(table):
        for share, line, mark in _SHARES:
            rows = _rows(table, checkpoint, f"{metric}_{share}", nulls=("",))
            _curve(axes, rows, colours[checkpoint], line + mark, label=f"{checkpoint}: {share}")


def _chance(axes: Axes, table: pd.DataFrame, metric: str, colours: Mapping[str, str]) -> None:
    """Draw what routers would reach that know nothing, the position alone, or the image alone."""
    for checkpoint in _parts.checkpoints(table):
        colour = colours[checkpoint]
        for null, style in (("pooled", ":"), ("position", "--"), ("image", "-.")):
            rows = _rows(table, checkpoint, f"{metric}_chance", nulls=(null,))
            if len(rows):
                axes.plot(rows["severity"], rows["value"], style, color=colour, linewidth=1)
                # One entry per kind of line: its colour says whose it is.
                axes.plot([], [], style, color="#606060", linewidth=1, label=f"chance, {null}")


def _floor(axes: Axes, rows: pd.DataFrame) -> None:
    """Shade what the clean image misses of itself when it is run again, at worst."""
    if len(rows):
        lowest = rows["ci_low"].fillna(rows["value"]).min()
        axes.axhspan(lowest, 1, color="#808080", alpha=0.35, linewidth=0, label="noise floor (arithmetic)")


def _rows(table: pd.DataFrame, checkpoint: str, metric: str, *, nulls: Sequence[str]) -> pd.DataFrame:
    rows = _parts.select(table, checkpoint=checkpoint, metric=metric)
    return rows[rows["null"].isin(list(nulls))].sort_values("severity")
