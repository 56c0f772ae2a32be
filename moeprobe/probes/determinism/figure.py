"""Choices that differ where the same inputs are run in another way, layer by layer."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.inputs.modality import Modality
from moeprobe.results.figures import panels
from moeprobe.results.layouts.by_view import flips


def draw(
    table: pd.DataFrame,
    *,
    colors: Mapping[str, str],
    title: str = "The same inputs, run in other ways",
    sampled: Modality | None = None,
) -> dict[str, Figure]:
    """Return the figure: a panel per layer (of many the first and the last), a line per way.

    None where nothing differs. ``sampled`` is what intervals are over, where that is not what the models read.
    """
    rows = flips(table)
    if rows.empty or not (rows["value"] > 0).any():
        return {}
    layers, notes = panels.shown_layers(panels.layers(rows))
    views, checkpoints = list(dict.fromkeys(rows["view"])), panels.checkpoints(rows)
    height = float(np.clip(0.22 * len(views) * max(1, len(checkpoints) / 3), 2.4, 9))
    figure, axes = panels.panels(1, len(layers), width=4.2, height=height)
    for across, layer in enumerate(layers):
        panel = axes[0, across]
        for checkpoint, shift in panels.name_shifts(checkpoints):
            of_one = panels.select(rows, layer=layer, checkpoint=checkpoint)
            of_one = of_one.set_index("view").reindex(views).reset_index()
            y, value = np.arange(len(views)) + shift, of_one["value"].to_numpy(float)
            low, high = (of_one[end].fillna(of_one["value"]).to_numpy(float) for end in ("ci_low", "ci_high"))
            panel.errorbar(
                value,
                y,
                xerr=np.clip(np.stack([value - low, high - value]), 0, None),
                fmt="o",
                color=colors[checkpoint],
                markersize=3,
                capsize=2,
                linewidth=1,
                label=checkpoint,
            )
        panel.set_yticks(range(len(views)), views)
        panel.set_ylim(len(views) - 0.4, -0.6)
        panel.set_xlim(left=0)
        panel.set_title(layer)
        panel.set_xlabel("tokens that choose other experts")
    layer_rows = rows[rows["layer"].isin(layers)]
    return {"determinism": panels.finish(figure, layer_rows, title=title, notes=notes, sampled=sampled)}
