"""How a training run went: losses and accuracy over the steps."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from moeprobe.results.figures import panels
from moeprobe.results.palette import COLORS

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


def draw(metrics: pd.DataFrame, *, name: str) -> Figure:
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
