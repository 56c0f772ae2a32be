"""The figure of ``trace balance``: how long hot experts stay hot, and the imbalance of ranks."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.hot_experts import HOT_OVERLAP, HOT_OVERLAP_SHUFFLED
from moeprobe.metrics.analyses.rank_load import RANK_IMBALANCE
from moeprobe.metrics.declaration import CHANCE
from moeprobe.metrics.relabeled_ranks import OF_RANKS
from moeprobe.metrics.watched_load import FIRST_CHANGED, USUAL_CHANGE
from moeprobe.recorded.trace_balance.sentences import rows_of
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.layouts.load_over_time import placements
from moeprobe.results.palette import COLORS
from moeprobe.results.tables import of_all_tokens

_RELABELED = "relabeled experts"
_OVERLAPS = {
    HOT_OVERLAP.name: "one window and the next",
    HOT_OVERLAP_SHUFFLED.name: "shuffled requests",
    f"{HOT_OVERLAP.name}{CHANCE}": "chance",
}


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure of a run: a panel of hot experts and, of ranks, one of layers and one of windows."""
    table = of_all_tokens(result.table)
    imbalances, overlaps = rows_of(table, RANK_IMBALANCE.name), rows_of(table, HOT_OVERLAP.name)
    placed = placements(imbalances)
    watched = table[(table["metric"] == USUAL_CHANGE.name) & table["severity"].notna()]
    by_window = table.loc[table["metric"] == RANK_IMBALANCE.name, "severity"].notna().any()
    # A single window has no earlier one to overlap with, and no course over time.
    number = (not overlaps.empty) + bool(placed) + bool(placed and by_window) + (not watched.empty)
    figure, axes = panels.panels(1, number, width=4.6, sharey=False)
    remaining = list(axes[0])
    layers = panels.layers(imbalances[imbalances["layer"] != ""] if overlaps.empty else overlaps)
    if not overlaps.empty:
        lines = {label: rows_of(table, name) for name, label in _OVERLAPS.items()}
        panel = remaining.pop(0)
        _draw_lines(panel, lines, layers, COLORS)
        panel.set_ylim(-0.02, 1.02)
        panel.set_ylabel("overlap of hot experts")
    if not watched.empty:
        _draw_watched(remaining.pop(), watched, rows_of(table, FIRST_CHANGED.name, layer="")["value"])
    if placed:
        lines = {view: rows_of(table, RANK_IMBALANCE.name, view=view) for view in placed}
        lines[_RELABELED] = rows_of(table, OF_RANKS.relabeled.name, view=placed[0])
        lines = {label: rows[rows["layer"] != ""] for label, rows in lines.items()}
        _draw_lines(remaining[0], lines, layers, COLORS[len(_OVERLAPS) :])
        if by_window:
            _draw_windows(remaining[1], table, COLORS[len(_OVERLAPS)], COLORS[len(_OVERLAPS) + len(placed)])
        for panel in remaining:
            panel.axhline(1, color="#999999", linewidth=0.8)
            panel.set_ylabel("busiest rank / mean")
    title = "Hot experts and the load of ranks over time" if placed else "Hot experts over time"
    if overlaps.empty:
        title = "The load of ranks"
    notes = ["Bars of relabeled experts hold 95 % of the relabelings"] if placed else []
    return {
        "balance": panels.finish(figure, imbalances if overlaps.empty else overlaps, title=title, notes=notes)
    }


def _draw_watched(axes: Axes, rows: pd.DataFrame, changed_at: pd.Series) -> None:
    """Draw the change since the baseline after each batch, with intervals that hold at all batches at once.

    A line marks the batch that first shows a change, which a later stretch of batches may have done.
    """
    batch, change = rows["severity"].to_numpy(float), rows["value"].to_numpy(float)
    axes.plot(batch, change, color=COLORS[0])
    axes.fill_between(
        batch, rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float), color=COLORS[0], alpha=0.25,
        linewidth=0,
    )  # fmt: skip
    axes.axhline(0, color="#999999", linewidth=0.8)
    for at in changed_at:
        axes.axvline(at, color=COLORS[1], linestyle="--", label="first shows a change")
    axes.set_xlabel("batch since the baseline; all layers")
    axes.set_ylabel("change of the usual hot experts' share")


def _draw_lines(
    axes: Axes, lines: Mapping[str, pd.DataFrame], layers: list[str], palette: tuple[str, ...] | list[str]
) -> None:
    """Draw a line for each number over the layers."""
    for (label, rows), color, shift in zip(lines.items(), palette, panels.shifts(len(lines)), strict=False):
        panels.draw_over_layers(axes, rows, layers, color=color, label=label, shift=shift)
    panels.label_layers(axes, layers)


def _draw_windows(axes: Axes, table: pd.DataFrame, color: str, color_relabeled: str) -> None:
    """Draw the imbalance of the given placement in each window, over all layers, and with relabeled experts."""
    colors = {RANK_IMBALANCE.name: color, OF_RANKS.relabeled.name: color_relabeled}
    for metric, color_of_metric in colors.items():
        rows = table[(table["metric"] == metric) & table["severity"].notna()]
        x = rows["severity"].to_numpy(float)
        panels.points(axes, x, rows, color=color_of_metric, label="", fmt="o-")
    axes.set_xticks(np.unique(table.loc[table["metric"] == RANK_IMBALANCE.name, "severity"].dropna()))
    axes.set_xlabel("window of requests; all layers")
