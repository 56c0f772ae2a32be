"""Few-shot accuracy: all draws together with their interval, each draw pale next to it, and the level of chance."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.declaration import CHANCE
from moeprobe.results.figures import panels


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a place per number of shots; colors are of checkpoints."""
    accuracy = table[table["metric"] == FEWSHOT_ACCURACY.name]
    shots, checkpoints = sorted(set(accuracy["severity"])), panels.checkpoints(accuracy)
    figure, axes = panels.panels(1, 1, width=2.6 + 1.1 * max(len(shots), 2), height=3.4)
    panel = axes[0, 0]
    for number, checkpoint in enumerate(checkpoints):
        shift = 0.6 * ((number + 0.5) / len(checkpoints) - 0.5)
        rows = panels.select(accuracy, checkpoint=checkpoint)
        single, together = rows[rows["draw"].notna()], rows[rows["draw"].isna()]
        x = np.searchsorted(shots, single["severity"]) + shift
        panel.plot(
            x - 0.07, single["value"].to_numpy(float), "o", color=colors[checkpoint], markersize=4, alpha=0.3
        )
        x = np.searchsorted(shots, together["severity"]) + shift
        panels.points(panel, x, together, color=colors[checkpoint], label=checkpoint)
        chance = panels.select(table, checkpoint=checkpoint, metric=f"{FEWSHOT_ACCURACY.name}{CHANCE}")
        chance = chance[chance["draw"].isna()]
        x = np.searchsorted(shots, chance["severity"]) + shift
        panel.plot(x, chance["value"].to_numpy(float), "_", color=colors[checkpoint], markersize=14)
    # One entry for the kind of mark: its color says whose it is.
    panel.plot([], [], "o", color="#606060", markersize=4, alpha=0.4, label="single draws")
    panel.plot([], [], "_", color="#606060", markersize=14, label="by chance")
    panel.set(ylim=(-0.03, 1.03), ylabel="accuracy", xlabel="training images per class")
    panel.set_xticks(np.arange(len(shots)), [f"{count:g}" for count in shots])
    panel.set_xlim(-0.6, len(shots) - 0.4)
    return {"fewshot": panels.finish(figure, accuracy, title="Few-shot accuracy of frozen features")}
