"""Forest plot: paired differences with their simultaneous intervals, a panel per metric.

A cell without a value or an interval is named as what it is (collapsed, few images), not left out.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moeprobe.inputs.modality import ORDINARY, modality_of, modality_of_row
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.registry import compared_first, find
from moeprobe.results.figures import panels
from moeprobe.results.tables import agreement_of, set_match_of

_GRAY = "#606060"
# More rows than this in a panel, and only one metric of the routing is drawn.
_MOST_CELLS = 24
# The share of a panel's width that a word takes.
_WORD = 0.23


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> Figure:
    """Return the figure of a comparison: patches and output, cells from top to bottom; colors are of checkpoints."""
    selected = table[table["tokens"].isin([*ORDINARY, ""])]
    agreements = (agreement_of(table), set_match_of(table))
    lines = compared_first(*agreements, modality=modality_of(table["tokens"], data=table["dataset"].iloc[0]))
    if not selected["metric"].isin([metric for metric, _ in lines]).any():
        # A run of other things, jumps say.
        lines = {(metric, ""): metric.replace("_", " ") for metric in dict.fromkeys(selected["metric"])}
    panel_rows = [
        (title, rows)
        for (metric, null), title in lines.items()
        if len(rows := panels.select(selected, metric=metric, null=null))
    ]
    panel_rows, left_out = _readable(panel_rows, {f"{name}{KAPPA}" for name in agreements})
    table_drawn = pd.concat([rows for _, rows in panel_rows])
    pairs = list(dict.fromkeys(zip(table_drawn["checkpoint"], table_drawn["reference"], strict=True)))
    columns = min(2 if len(panel_rows) <= 4 else 3, len(panel_rows))
    grid = [panel_rows[start : start + columns] for start in range(0, len(panel_rows), columns)]
    heights = [1.0 + 0.17 * max(_lines(rows, pairs) for _, rows in line) for line in grid]
    figure, axes = panels.pictures(
        len(grid), columns, (4.9 * columns, sum(heights) + 1.3), height_ratios=heights
    )
    for row, line in enumerate(grid):
        for column in range(columns):
            if column < len(line):
                title, rows = line[column]
                _panel(axes[row, column], rows, pairs, colors, title)
            else:
                axes[row, column].set_axis_off()
    names = list(dict.fromkeys(table_drawn["reference"]))
    margin = table_drawn["margin"].max()
    against = names[0] if len(names) == 1 else "the checkpoint of the same seed"
    notes = [] if math.isnan(margin) else [f"Gray: inside ±{margin:g}"]
    if left_out:
        notes.append(f"In the table only: {', '.join(left_out)}")
    title = f"{table_drawn['view'].iloc[0]}: difference from {against}"
    mark = "bars, for all of one color in a panel at once"
    return panels.finish(figure, table_drawn, title=title, notes=notes, mark=mark)


def _readable(
    panel_rows: list[tuple[str, pd.DataFrame]], kappas: set[str]
) -> tuple[list[tuple[str, pd.DataFrame]], list[str]]:
    """Return the drawn rows and the omitted titles: of many layers and severities only κ and output are drawn."""
    if max(len(rows.drop_duplicates(["layer", "severity"])) for _, rows in panel_rows) <= _MOST_CELLS:
        return panel_rows, []
    readable = [
        (title, rows)
        for title, rows in panel_rows
        if rows["metric"].iloc[0] in kappas or (rows["layer"] == "").all()
    ]
    left_out = [title for title, _ in panel_rows if title not in [name for name, _ in readable]]
    return (readable, left_out) if readable else (panel_rows, [])


def _lines(rows: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> float:
    return len(rows.drop_duplicates(["layer", "severity"])) * max(1.4, len(pairs))


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    colors: Mapping[str, str],
    title: str,
) -> None:
    cells = list(rows.groupby(["layer", "severity"], sort=False, dropna=False))
    margin = rows["margin"].iloc[0]
    if not math.isnan(margin):
        axes.axvspan(-margin, margin, color="#e6e6e6", linewidth=0)
    axes.axvline(0, color=_GRAY, linewidth=1)
    step = 0.7 / max(len(pairs), 1)
    words = []
    for index, (_, cell_rows) in enumerate(cells):
        for number, (checkpoint, reference) in enumerate(pairs):
            differences = panels.select(cell_rows, checkpoint=checkpoint, reference=reference)
            if differences.empty:
                continue  # this checkpoint has no such layer
            y = index + step * (number - (len(pairs) - 1) / 2)
            label = checkpoint if len({side for _, side in pairs}) == 1 else f"{checkpoint} − {reference}"
            if _point(axes, differences.iloc[0], y, color=colors[checkpoint], label=label):
                words.append((y, differences.iloc[0], colors[checkpoint]))
    axes.set_title(title)
    axes.set_yticks(range(len(cells)), [_cell(*key) for key, _ in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    sign = find(rows["metric"].iloc[0]).direction
    if sign:
        axes.set_xlabel("better →" if sign > 0 else "← better", fontsize=9)
    ends = [row["sim_high"] for _, row, _ in words if not math.isnan(row["sim_high"])]
    if ends:
        lowest, right = axes.get_xlim()
        axes.set_xlim(right=max(right, lowest + (max(ends) - lowest) / (1 - _WORD)))
    for y, row, color in words:
        _word(axes, row, y, color=color)


def _point(axes: Axes, row: pd.Series, y: float, *, color: str, label: str) -> bool:
    """Draw a difference; returns whether a word must say why it is not drawn, or not drawn whole."""
    has_value = row["verdict"] != "collapsed" and not math.isnan(row["value"])
    has_interval = has_value and not math.isnan(row["sim_low"])
    low, high = (row["sim_low"], row["sim_high"]) if has_interval else (row["value"], row["value"])
    axes.errorbar(
        [row["value"]] if has_value else [],
        [y] if has_value else [],
        xerr=np.array([[row["value"] - low], [high - row["value"]]]) if has_value else None,
        fmt="o",
        color=color,
        markersize=5,
        capsize=3,
        linewidth=1.5,
        label=label,
    )
    return not has_interval or row["verdict"] == "identical"


def _word(axes: Axes, row: pd.Series, y: float, *, color: str) -> None:
    """Write the verdict next to the point, or next to 0 if there is none, on the side that has room."""
    words = {"reference": "reference collapsed", "both": "both collapsed"}
    word = words.get(row["collapsed"]) or modality_of_row(row).translate(row["verdict"])
    at = 0.0 if math.isnan(row["value"]) or row["verdict"] == "collapsed" else row["value"]
    rightwards = at < sum(axes.get_xlim()) / 2
    if not math.isnan(row["sim_high"]):
        at, rightwards = row["sim_high"], True  # past the bar, which would strike it through
    axes.annotate(
        word,
        (at, y),
        xytext=(6 if rightwards else -6, 0),
        textcoords="offset points",
        ha="left" if rightwards else "right",
        va="center",
        color=color,
        fontsize=9,
        fontstyle="italic",
    )


def _cell(layer: str, severity: float) -> str:
    return " ".join(part for part in (layer, "" if math.isnan(severity) else f"at {severity:g}") if part)
