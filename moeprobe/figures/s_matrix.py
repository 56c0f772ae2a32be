"""The correlation matrix of paired gates as a heat map (Figure 3 of the PRC paper)."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.figures import STYLE, _parts
from moeprobe.medium import TEXT, medium_of

# Perceptually even, and made to look the same with the common colour deficiencies.
_MAP = "cividis"
# More experts than this, and numbers in the cells would be too small to read.
_MOST_NUMBERED = 10


def draw(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure: a row per MoE layer, a column per checkpoint, one colour scale for all, from 0.

    None where no gates are a distribution.
    """
    entries = table[table["metric"] == "s"]
    if entries.empty:
        return {}
    layers, checkpoints = _parts.layers(entries), _parts.checkpoints(entries)
    highest = entries["value"].max()
    scale = Normalize(0, float(highest) if np.isfinite(highest) else 1.0)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(3.6 * len(checkpoints) + 1.2, 4.0 * len(layers) + 0.7), layout="constrained")
        axes = figure.subplots(len(layers), len(checkpoints), squeeze=False)
    for row, layer in enumerate(layers):
        for column, checkpoint in enumerate(checkpoints):
            here = _parts.ordinary(_parts.select(table, layer=layer, checkpoint=checkpoint))
            if not (here["metric"] == "s").any():
                axes[row, column].set_axis_off()  # this checkpoint has no such layer
                continue
            _heat_map(axes[row, column], here, scale)
            axes[row, column].set_title(f"{checkpoint}, {layer}\n{_summary(here)}")
    bar = figure.colorbar(ScalarMappable(scale, _MAP), ax=axes, shrink=0.7, aspect=30)
    bar.set_label("$S_{ij}$ (ideal: the identity)")
    bar.outline.set_visible(False)
    view = entries["view"].iloc[0]
    title = f"Correlation of the gates of corresponding {medium_of(table['tokens']).tokens}: {view}"
    return {"s-matrix": _parts.finish(figure, entries, title=title, mark="brackets")}


def _heat_map(axes: Axes, rows: pd.DataFrame, scale: Normalize) -> None:
    entries = rows[rows["metric"] == "s"]
    matrix = entries.pivot(index="expert", columns="expert_b", values="value").to_numpy(float)
    # The panels are nearly square as they are; a fixed shape would push headings over one another.
    axes.imshow(matrix, cmap=_MAP, norm=scale, interpolation="nearest", aspect="auto")
    first = "" if medium_of(rows["tokens"]) is TEXT else " (covers less)"
    axes.set(xlabel="expert, view 2", ylabel=f"expert, view 1{first}")
    step = int(np.ceil(len(matrix) / 10))
    axes.set_xticks(range(0, len(matrix), step))
    axes.set_yticks(range(0, len(matrix), step))
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if len(matrix) > _MOST_NUMBERED:
        return
    colour = mpl.colormaps[_MAP]
    for i, j in np.ndindex(matrix.shape):
        if np.isfinite(matrix[i, j]):
            bright = np.dot(colour(scale(matrix[i, j]))[:3], (0.299, 0.587, 0.114)) > 0.5
            axes.text(
                j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=7.5,
                color="black" if bright else "white",
            )  # fmt: skip


def _summary(rows: pd.DataFrame) -> str:
    """Return the means of the diagonal and of the rest with their intervals."""
    parts = []
    for metric, name, decimals in (
        ("s_diagonal", "mean $S_{ii}$", 2),
        ("s_offdiagonal", "mean $S_{i≠j}$", 3),
    ):
        row = rows[rows["metric"] == metric].iloc[0]
        value, low, high = (f"{row[column]:.{decimals}f}" for column in ("value", "ci_low", "ci_high"))
        parts.append(f"{name} {value}" + (f" [{low}, {high}]" if pd.notna(row["ci_low"]) else ""))
    return "\n".join(parts)
