"""Figures of the committed sweeps, of their tables and packed learning curves alone."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from seeds import layers, read, rows_of
from sweep_tables import SWEEPS, Sweep

from moeprobe import api
from moeprobe.results.figures import save
from moeprobe.results.packed import read_pack
from moeprobe.results.palette import COLORS

# Numbers of the output, which no layer has.
_OF_OUTPUT = ("accuracy", "fewshot_accuracy")


def write(folder: Path) -> None:
    """Write ``figures/first-layer.png``: what each cell does, most of all in the first MoE layer, a dot per seed.

    And ``figures/curves-….png`` where the sweep names learning curves.
    """
    table, _ = read(folder)
    save(draw(table, SWEEPS[folder.name]), folder / "figures" / "first-layer")
    packed = read_pack(folder)
    for prefix, key in SWEEPS[folder.name].curves:
        cells = [folder / "cells" / name for name in packed if name.startswith(prefix)]
        save(api.curves(cells, by=key, x="epoch").plot(), folder / "figures" / f"curves-{prefix}")


def draw(table: pd.DataFrame, sweep: Sweep) -> Figure:
    """Return a panel per number: a line per group, dots for seeds, a bar for the mean."""
    first, names, columns = layers(table)[0], sweep.names, sweep.drawn
    figure = Figure(figsize=(2 + 3 * len(columns), 0.9 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        layer = "" if column[1] in _OF_OUTPUT else first
        for place, group in enumerate(names):
            values = rows_of(table[table["group"] == group], layer, column)["value"]
            ax.plot(values, [place] * len(values), "o", color=COLORS[0], alpha=0.6, markersize=5)
            ax.plot([values.mean()], [place], "|", color="black", markersize=14, markeredgewidth=2)
        ax.set_title(f"{column[0]}\nin {layer}" if layer else column[0], fontsize=10)
        ax.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names.values())
    axes[0].invert_yaxis()
    figure.supxlabel("A dot is a training seed; the bar is their mean.", fontsize=9)
    return figure
