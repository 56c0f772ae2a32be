"""How a training run went: losses and accuracy over the steps."""

import pandas as pd
from matplotlib.figure import Figure

from moeprobe.figures import _parts
from moeprobe.palette import COLOURS

_NOT_AUXILIARY = {"train_loss", "train_main_loss", "train_accuracy"}


def draw(metrics: pd.DataFrame, *, name: str) -> Figure:
    """Return the figure of a run's ``metrics.csv``."""
    auxiliary = [column for column in metrics if column.startswith("train_") and column not in _NOT_AUXILIARY]
    figure, axes = _parts.panels(1, 3)
    loss, accuracy, terms = axes[0]
    for axis, columns in (
        (loss, {"train_main_loss": "training", "val_loss": "validation"}),
        (accuracy, {"train_accuracy": "training", "val_accuracy": "validation"}),
        (terms, {column: column.removeprefix("train_") for column in auxiliary}),
    ):
        for number, (column, label) in enumerate(columns.items()):
            axis.plot(
                metrics["step"], metrics[column], "o-", color=COLOURS[number], markersize=4, label=label
            )
        axis.set_xlabel("step")
        if columns:
            axis.legend(frameon=False)
    loss.set(title="supervised loss", ylim=(0, None))
    accuracy.set(title="accuracy", ylim=(None, 1.01))
    terms.set(title="auxiliary losses, unweighted", ylim=(0, None))
    figure.suptitle(f"{name}: training means since the evaluation before, validation on clean images")
    return figure
