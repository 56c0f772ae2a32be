"""How trainings went: the learning curves of several, and the losses and accuracy of one."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from moeprobe.results.figures import panels
from moeprobe.results.palette import COLORS

_HEIGHT = 3.6
_MOST_COLUMNS = 3
# Yellow is too light for lines. More groups than colors have other styles.
_COLORS = len(COLORS) - 1
_STYLES = (("-", ""), ("--", " (dashed)"), (":", " (dotted)"))


def draw_curves(table: pd.DataFrame, *, by: str, x: str) -> Figure:
    """Return the figure of a table of curves, a panel per value of the column ``panel``; ``by`` is what it is of.

    Color and style are the group, a thin line a seed, a bold one their mean.
    """
    values = list(dict.fromkeys(table["panel"]))
    columns = min(_MOST_COLUMNS, len(values))
    figure, axes = panels.panels(-(-len(values) // columns), columns, width=5.4, height=_HEIGHT, sharey=False)
    panel_values = list(zip(axes.flat, values, strict=False))
    groups = {str(group): number for number, group in enumerate(dict.fromkeys(table["group"]))}
    ends = [_lines(axis, panels.select(table, panel=value), x, groups) for axis, value in panel_values]
    low, high = zip(*(axis.get_ylim() for axis, _ in panel_values), strict=True)
    metric = str(table["metric"].iloc[0])
    for (axis, value), labels in zip(panel_values, ends, strict=True):
        axis.set_ylim(min(low), max(high))
        axis.set(title=f"{by} = {value}" if by else "", xlabel=x)
        axis.set_ylabel(metric.replace("_", " ") if axis in axes[:, 0] else "")
        panels.write_beside(axis, labels, height=_HEIGHT - 0.6)
    for axis in axes.flat[len(values) :]:
        axis.set_axis_off()
    seeds = table.groupby(["panel", "group"])["run"].nunique().max() > 1
    figure.suptitle("Learning curves")
    explanation = "training: mean of the steps since the previous evaluation; validation: clean images"
    thin = "Thin: one training each; bold: the mean of a group, where all have a value. " if seeds else ""
    return panels.add_caption(figure, f"{thin}{explanation[0].upper()}{explanation[1:]}.")


def _lines(axis: Axes, table: pd.DataFrame, x: str, groups: dict[str, int]) -> list[panels.Named]:
    """Draw the trainings of a panel, colored by the numbers of their groups; returns where each group ends."""
    ends = []
    for group, rows in table.groupby("group", sort=False):
        again, color_index = divmod(groups[str(group)], _COLORS)
        color, (style, style_note) = COLORS[color_index], _STYLES[again % len(_STYLES)]
        runs = [run.sort_values(x, kind="stable") for _, run in rows.groupby("run", sort=False)]
        middle = mean(runs, x)
        if len(runs) > 1:
            for run in runs:
                axis.plot(run[x], run["value"], color=color, linestyle=style, linewidth=0.8, alpha=0.45)
        axis.plot(middle.index, middle, color=color, linestyle=style, linewidth=2)
        last = (middle.index[-1], middle.iloc[-1]) if len(middle) else tuple(runs[0][[x, "value"]].iloc[-1])
        ends.append(panels.Named(float(last[0]), float(last[1]), f"{group}{style_note}", color, style))
    axis.margins(x=0.02)
    return ends


def mean(runs: list[pd.DataFrame], x: str) -> pd.Series:
    """Return the mean over runs by ``x``, where all of them have a value."""
    lines = pd.concat([run.drop_duplicates(x).set_index(x)["value"] for run in runs], axis=1)
    return lines.dropna().mean(axis=1).sort_index()


# One training: losses and accuracy over the steps.

_NOT_AUXILIARY = {
    "train_loss",
    "train_main_loss",
    "train_accuracy",
    "train_plan_nonzeros",
    "train_plan_error",
}
_ROOM = {"train_dropped": "dropped choices", "train_buffer_fill": "places taken"}
# Losses that differ by more than this factor are drawn on a logarithmic axis.
_WIDE = 10


def draw_training(metrics: pd.DataFrame, *, name: str) -> Figure:
    """Return the figure of a run's ``metrics.csv``; every panel has a y axis of its own."""
    auxiliary = [
        column
        for column in metrics
        if column.startswith("train_") and column not in {*_NOT_AUXILIARY, *_ROOM}
    ]
    classified = "val_accuracy" in metrics
    of_loss = "supervised loss" if classified else "loss of hidden patches"
    panel_columns = [(of_loss, {"train_main_loss": "training", "val_loss": "validation"})]
    if classified:
        panel_columns.append(("accuracy", {"train_accuracy": "training", "val_accuracy": "validation"}))
    if auxiliary:
        columns = {column: column.removeprefix("train_").replace("_", " ") for column in auxiliary}
        panel_columns.append(("auxiliary losses, unweighted", columns))
    if room := {column: label for column, label in _ROOM.items() if column in metrics}:
        panel_columns.append(("room at the experts, shares", room))
    figure, axes = panels.panels(1, len(panel_columns), sharey=False)
    for axis, (title, columns) in zip(axes[0], panel_columns, strict=True):
        for number, (column, label) in enumerate(columns.items()):
            color = COLORS[number % len(COLORS)]
            axis.plot(metrics["step"], metrics[column], "o-", color=color, markersize=4, label=label)
        axis.set(title=title, xlabel="step")
        axis.legend(frameon=False)
        if title == "accuracy" or columns.keys() <= _ROOM.keys():
            axis.set_ylim(-0.02, 1.02)
        else:
            _scale(axis, metrics[list(columns)])
    figure.suptitle(
        f"{name}\ntraining: mean of the steps since the previous evaluation; validation: clean images"
    )
    return figure


def _scale(axis: Axes, losses: pd.DataFrame) -> None:
    """Show losses from 0 on, or by their order of magnitude where they differ by much."""
    lowest, highest = losses.min(axis=None), losses.max(axis=None)
    if lowest > 0 and highest > _WIDE * lowest:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    elif lowest >= 0:
        axis.set_ylim(0, None)
