"""Choices that differ, for each part of the model whose weights are rounded, along the formats."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.results.figures import panels


def draw(rows: pd.DataFrame, *, colors: Mapping[str, str], formats: Sequence[str]) -> dict[str, Figure]:
    """Return the figure: a row per layer, a column per part; of many layers the first and the last.

    Args:
        rows: as ``by_part`` gives them.
        colors: of checkpoints.
        formats: those along the axis.
    """
    if rows.empty:
        return {}
    layers, notes = panels.shown_layers(panels.layers(rows))
    parts, checkpoints = list(dict.fromkeys(rows["part"])), panels.checkpoints(rows)
    figure, axes = panels.panels(len(layers), len(parts), width=2.9, height=2.4)
    for down, layer in enumerate(layers):
        for across, part in enumerate(parts):
            panel = axes[down, across]
            for checkpoint, shift in panels.name_shifts(checkpoints):
                of_one = panels.select(rows, layer=layer, part=part, checkpoint=checkpoint)
                of_one = of_one.set_index("format").reindex(list(formats)).reset_index()
                x = np.arange(len(formats)) + shift
                panels.points(panel, x, of_one, color=colors[checkpoint], label=checkpoint, size=3, width=1)
            last = down == len(layers) - 1
            panel.set_xticks(range(len(formats)), list(formats) if last else [], rotation=45, ha="right")
            panel.set_title(f"{part}, {layer}")
            if across == 0:
                panel.set_ylabel("tokens that choose\nother experts")
        axes[down, 0].set_ylim(bottom=0)
    title = "Tokens that change experts when a part of the weights is rounded"
    layer_rows = rows[rows["layer"].isin(layers)]
    return {"precision": panels.finish(figure, layer_rows, title=title, notes=notes)}
