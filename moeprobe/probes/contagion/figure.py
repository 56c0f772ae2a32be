"""How far routing depends on batch-mates, on the tokens that the router sees, and on the rest of the picture."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.metrics.registry import find
from moeprobe.results.figures import panels

_ROWS = {"": "share of tokens that\nchange experts", "_distance": "mean distance of\na token's weights"}


def draw(
    table: pd.DataFrame, *, colors: Mapping[str, str], metrics: Sequence[str], notes: Sequence[str]
) -> dict[str, Figure]:
    """Return the figure: a panel per number, a row for the share and one for the distance.

    Args:
        table: of a run.
        colors: of checkpoints.
        metrics: shares that are not 0 everywhere; without any, there is no figure.
        notes: sentences about the others, below the figure.
    """
    patches = table[table["tokens"] == "patch"]
    measured = set(patches.loc[patches["value"].notna(), "metric"])
    numbers = [name for name in metrics if f"{name}_distance" in measured]
    if not numbers:
        return {}
    # Where every expert has a share of every token there is no choice to change.
    kinds = [kind for kind in _ROWS if any(f"{name}{kind}" in measured for name in numbers)]
    layers, checkpoints = panels.layers(patches), panels.checkpoints(patches)
    figure, axes = panels.panels(
        len(kinds), len(numbers), width=float(np.clip(0.6 * len(layers), 3.6, 6.0)), height=2.6
    )
    for row, kind in enumerate(kinds):
        for column, name in enumerate(numbers):
            panel = axes[row, column]
            for checkpoint, shift in panels.name_shifts(checkpoints):
                rows = panels.select(patches, checkpoint=checkpoint, metric=f"{name}{kind}")
                rows = rows.set_index("layer").reindex(layers).reset_index()
                x = np.arange(len(layers)) + shift
                panels.points(panel, x, rows, color=colors[checkpoint], label=checkpoint)
            panels.label_layers(panel, layers, with_label=row == len(kinds) - 1)
            panel.set(
                title=find(name).metric.short if row == 0 else "",
                ylabel=_ROWS[kind] if column == 0 else "",
            )
        top = max(panel.get_ylim()[1] for panel in axes[row])
        axes[row, 0].set_ylim(-0.03 * top, top)
    drawn = patches[patches["metric"].isin([f"{name}{kind}" for name in numbers for kind in kinds])]
    title = "Dependence of routing on other tokens, patches"
    return {"contagion": panels.finish(figure, drawn, title=title, notes=notes)}
