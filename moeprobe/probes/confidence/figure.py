"""Router confidence: highest gate, second, the rest, and the margin."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.confidence import Confidence
from moeprobe.results.figures import panels
from moeprobe.results.figures.layers import draw_line, label_axis, shifts

_LABELS = {metric.name: metric.name.removeprefix("gate_") for metric in Confidence.measures}


def draw(table: pd.DataFrame, *, colors: Mapping[str, str], title: str | None = None) -> dict[str, Figure]:
    """Return the figure: a panel per MoE layer; none where no gates are a distribution; colors are of checkpoints.

    Of more than ``panels.MOST_PANELS`` layers, layers are the x axis and each gate has a panel.
    """
    patches = panels.ordinary(table[table["metric"].isin(list(_LABELS))])
    if patches.empty:
        return {}
    layers = panels.layers(patches)
    draw_panels = _over_layers if len(layers) > panels.MOST_PANELS else _by_layer
    figure = draw_panels(patches, layers, colors)
    clean = f"Router confidence on clean {modality_of(patches['tokens']).plural}"
    return {"confidence": panels.finish(figure, patches, title=title or clean)}


def _by_layer(patches: pd.DataFrame, layers: Sequence[str], colors: Mapping[str, str]) -> Figure:
    """Draw a panel per layer, with a place per gate."""
    checkpoints = panels.checkpoints(patches)
    figure, axes = panels.panels(1, len(layers))
    for column, layer in enumerate(layers):
        for number, checkpoint in enumerate(checkpoints):
            rows = panels.select(patches, layer=layer, checkpoint=checkpoint)
            if rows.empty:
                continue  # this checkpoint has no such layer
            x = np.arange(len(_LABELS)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            values = panels.by_metric(rows, list(_LABELS))
            panels.points(axes[0, column], x, values, color=colors[checkpoint], label=checkpoint)
        axes[0, column].set(title=layer, ylim=(0, 1), ylabel="mean gate" if column == 0 else "")
        axes[0, column].set_xticks(np.arange(len(_LABELS)), list(_LABELS.values()))
    return figure


def _over_layers(patches: pd.DataFrame, layers: Sequence[str], colors: Mapping[str, str]) -> Figure:
    """Draw a panel per gate, with the layers along the x axis."""
    checkpoints = panels.checkpoints(patches)
    figure, axes = panels.panels(2, 2, width=5.4, height=2.6)
    for panel, (metric, label) in zip(axes.flat, _LABELS.items(), strict=True):
        for checkpoint, shift in zip(checkpoints, shifts(len(checkpoints)), strict=True):
            rows = panels.select(patches, checkpoint=checkpoint, metric=metric)
            draw_line(panel, rows, layers, color=colors[checkpoint], label=checkpoint, shift=shift)
        panel.set(title=label, ylim=(0, 1))
        label_axis(panel, layers, named=panel in axes[-1])
    for row in axes[:, 0]:
        row.set_ylabel("mean gate")
    return figure
