"""Figures of the committed sweeps, of their tables alone."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from seeds import layers, read, rows_of
from sweep_tables import DEAD, SWEEPS

from moeprobe.results.figures import save
from moeprobe.results.palette import COLORS

_KAPPA = ("κ of first experts, prc_crops", "top1_match_kappa", "pooled", "prc_crops", None)
_GATE = ("highest gate", "gate_highest", "", "clean", None)


def write(folder: Path) -> None:
    """Write ``figures/first-layer.png``: what each cell does to routing in the first MoE layer, a dot per seed."""
    table, _ = read(folder)
    save(draw(table, SWEEPS[folder.name].names), folder / "figures" / "first-layer")


def draw(table: pd.DataFrame, names: dict[str, str]) -> Figure:
    """Return a panel per number of the first MoE layer: a line per group, dots for seeds, a bar for the mean."""
    layer = layers(table)[0]
    columns = (_KAPPA, _GATE, DEAD)
    figure = Figure(figsize=(11, 0.9 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        for place, group in enumerate(names):
            values = rows_of(table[table["group"] == group], layer, column)["value"]
            ax.plot(values, [place] * len(values), "o", color=COLORS[0], alpha=0.6, markersize=5)
            ax.plot([values.mean()], [place], "|", color="black", markersize=14, markeredgewidth=2)
        ax.set_title(f"{column[0]}\nin {layer}", fontsize=10)
        ax.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names.values())
    axes[0].invert_yaxis()
    figure.supxlabel("A dot is a training seed; the bar is their mean.", fontsize=9)
    return figure
