"""Figures of the committed sweeps, of their tables and packed learning curves alone."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from moeprobe import api
from moeprobe.results.figures import save
from moeprobe.results.packed import read_pack
from moeprobe.results.palette import COLORS
from reports.scripts.seeds import Column, layers, read, rows_of
from reports.scripts.sweep_list import SWEEPS, Sweep

# Numbers of the output, which no layer has.
_OF_OUTPUT = ("accuracy", "fewshot_accuracy")


def write(folder: Path) -> None:
    """Write the figures of a sweep below it."""
    for name, figure in figures(folder).items():
        save(figure, folder / "figures" / name)


def figures(folder: Path) -> dict[str, Figure]:
    """Return ``first-layer``: what each cell does, most of all in the first MoE layer, a dot per seed.

    And ``curves-…`` where the sweep names learning curves, and ``experts`` where it is over the number of experts.
    """
    table, _ = read(folder)
    sweep = SWEEPS[folder.name]
    drawn = {"first-layer": draw(table, sweep)}
    if sweep.over_experts:
        drawn["experts"] = over_experts(table, sweep.over_experts)
    for prefix, key in sweep.curves:
        cells = [folder / "cells" / name for name in read_pack(folder) if name.startswith(prefix)]
        drawn[f"curves-{prefix}"] = api.curves(cells, by=key, x="epoch").plot()
    return drawn


def draw(table: pd.DataFrame, sweep: Sweep) -> Figure:
    """Return a panel per number: a line per group, dots for seeds, a bar for the mean."""
    first, names, columns = layers(table)[0], sweep.names, sweep.drawn
    figure = Figure(figsize=(2 + 3 * len(columns), 0.9 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        layer, title = _placed(column, first)
        for place, group in enumerate(names):
            values = rows_of(table[table["group"] == group], layer, column)["value"]
            if values.empty:
                ax.annotate(
                    "no value",
                    (0.02, place),
                    xycoords=("axes fraction", "data"),
                    va="center",
                    color="0.4",
                    fontsize=8,
                )
                continue
            ax.plot(values, [place] * len(values), "o", color=COLORS[0], alpha=0.6, markersize=5)
            ax.plot([values.mean()], [place], "|", color="black", markersize=14, markeredgewidth=2)
        ax.set_title(title, fontsize=10)
        ax.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names.values())
    axes[0].invert_yaxis()
    figure.supxlabel("A dot is a training seed; the bar is their mean.", fontsize=9)
    return figure


def over_experts(table: pd.DataFrame, columns: tuple[Column, ...]) -> Figure:
    """Return a panel per number: a line per router over the number of experts, with the range of the seeds."""
    figure = Figure(figsize=(3.5 * len(columns), 3.6), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False)[0]
    for ax, column in zip(axes, columns, strict=True):
        layer, title = _placed(column, layers(table)[0])
        rows = rows_of(table, layer, column)
        for place, (router, own) in enumerate(rows.groupby("router", sort=False)):
            found = own.groupby("num_experts")["value"].agg(["mean", "min", "max"])
            ends = [found["mean"] - found["min"], found["max"] - found["mean"]]
            # Bars of one number of experts stand side by side.
            beside = found.index * 2 ** (0.08 * (place - 1))
            ax.errorbar(
                beside,
                found["mean"],
                ends,
                fmt="o-",
                color=COLORS[place],
                capsize=2,
                markersize=4,
                label=router,
            )
        ax.set_xscale("log", base=2)
        experts = sorted(rows["num_experts"].unique())
        ax.set_xticks(experts, [f"{number:g}" for number in experts])
        ax.set_xlabel("experts")
        ax.set_title(title, fontsize=10)
        ax.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.supxlabel("Means over the training seeds; a bar is their range.", fontsize=9)
    return figure


def _placed(column: Column, first: str) -> tuple[str, str]:
    """Return where a number stands, "" or the first MoE layer, and the title of its panel."""
    layer = "" if column[1] in _OF_OUTPUT else first
    return layer, f"{column[0]}\nin {layer}" if layer else column[0]
