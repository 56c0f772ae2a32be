"""The figure of ``indexer``: κ of the selected keys by layer and by position."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.inputs.modality import REQUEST
from moeprobe.metrics.token_kinds import POSITION
from moeprobe.recorded.indexer.sentences import KEY_KAPPA, by_position, rows_of
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.palette import COLORS

_LEVELS = {"random": "random sets (hypergeometric)", "recency": "another request, same position"}


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure of a run: a panel of layers, and one of positions."""
    table = result.table
    figure, axes = panels.panels(1, 2, width=5.0)
    _draw_layers(axes[0, 0], table[(table["layer"] != "") & (table["tokens"] == REQUEST.token)])
    _draw_positions(axes[0, 1], by_position(table))
    for panel in axes[0]:
        panel.axhline(0, color="#999999", linewidth=0.8)
    kappas = table[table["metric"] == KEY_KAPPA]
    lowest = min(0.0, float(kappas[["value", "ci_low"]].min().min()))
    axes[0, 0].set_ylim(lowest - 0.02, 1.05)
    title = f"Selected keys of {table['checkpoint'].iloc[0]} and the first capture"
    return {"indexer": panels.finish(figure, kappas, title=title)}


def _draw_layers(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw κ of each layer, a line for each chance level."""
    layers = panels.layers(rows)
    for (null, label), color, shift in zip(
        _LEVELS.items(), COLORS, panels.shifts(len(_LEVELS)), strict=False
    ):
        of_null = rows_of(rows, KEY_KAPPA, null)
        if len(of_null):
            panels.draw_over_layers(
                axes, of_null, layers, color=color, label=f"κ, chance: {label}", shift=shift
            )
    panels.label_layers(axes, layers)
    axes.set_xlabel(axes.get_xlabel().replace("MoE layer", "layer with sparse attention"))
    axes.set_ylabel("κ (0 = chance)")


def _draw_positions(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw κ of all layers by the position of the query."""
    x = np.arange(len(rows))
    panels.points(axes, x, rows, color=COLORS[0], label="", fmt="o-")
    names = [name.removeprefix(f"{POSITION} ") for name in rows["tokens"]]
    axes.set_xticks(x, names, rotation=30, ha="right")
    axes.set_xlabel("position of the query; all layers")
