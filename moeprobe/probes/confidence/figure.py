"""Router confidence: highest gate, second, the rest, the margin, and the entropy."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.analyses.confidence import ConfidenceAnalysis
from moeprobe.results.figures import panels
from moeprobe.results.tables import SHOWN_LAYERS

_LABELS = {
    metric.name: metric.name.removeprefix("gate_").replace("_", "\n")
    for metric in ConfidenceAnalysis.measures
}
_MEAN = "mean over tokens"


def draw(table: pd.DataFrame, *, colors: Mapping[str, str], title: str | None = None) -> dict[str, Figure]:
    """Return the figure: a panel per MoE layer; none where no gates are a distribution; colors are of checkpoints.

    Of more than ``SHOWN_LAYERS`` layers, layers are the x axis and each number has a panel.
    """
    patches = panels.ordinary(table[table["metric"].isin(list(_LABELS))])
    if patches.empty:
        return {}
    layers, measured = panels.layers(patches), set(patches["metric"])
    labels = {metric: label for metric, label in _LABELS.items() if metric in measured}
    draw_panels = _over_layers if len(layers) > SHOWN_LAYERS else _by_layer
    figure = draw_panels(patches, layers, labels, colors)
    clean = f"Router confidence on clean {modality_of(patches['tokens']).plural}"
    return {"confidence": panels.finish(figure, patches, title=title or clean)}


def _by_layer(
    patches: pd.DataFrame, layers: Sequence[str], labels: Mapping[str, str], colors: Mapping[str, str]
) -> Figure:
    """Draw a panel per layer, with a place per number."""
    checkpoints = panels.checkpoints(patches)
    figure, axes = panels.panels(1, len(layers))
    for column, layer in enumerate(layers):
        for number, checkpoint in enumerate(checkpoints):
            rows = panels.select(patches, layer=layer, checkpoint=checkpoint)
            if rows.empty:
                continue  # this checkpoint has no such layer
            x = np.arange(len(labels)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            values = panels.by_metric(rows, list(labels))
            panels.points(axes[0, column], x, values, color=colors[checkpoint], label=checkpoint)
        axes[0, column].set(title=layer, ylim=(0, 1), ylabel=_MEAN if column == 0 else "")
        axes[0, column].set_xticks(np.arange(len(labels)), list(labels.values()))
    return figure


def _over_layers(
    patches: pd.DataFrame, layers: Sequence[str], labels: Mapping[str, str], colors: Mapping[str, str]
) -> Figure:
    """Draw a panel per number, with the layers along the x axis."""
    checkpoints = panels.checkpoints(patches)
    rows_of_panels = -(-len(labels) // 2)
    figure, axes = panels.panels(rows_of_panels, 2, width=5.4, height=2.6)
    for empty in axes.flat[len(labels) :]:
        empty.remove()
    lowest = axes.flat[max(len(labels) - 2, 0) : len(labels)]
    for panel, (metric, label) in zip(axes.flat, labels.items(), strict=False):
        for checkpoint, shift in panels.name_shifts(checkpoints):
            rows = panels.select(patches, checkpoint=checkpoint, metric=metric)
            panels.draw_over_layers(
                panel, rows, layers, color=colors[checkpoint], label=checkpoint, shift=shift
            )
        panel.set(title=label, ylim=(0, 1))
        panels.label_layers(panel, layers, with_label=panel in lowest)
    for first in axes[:, 0]:
        first.set_ylabel(_MEAN)
    return figure
