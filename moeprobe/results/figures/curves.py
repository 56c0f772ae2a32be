"""Learning curves of several trainings: color and style are the group, a thin line a seed, a bold one their mean."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.results.figures import panels
from moeprobe.results.figures.direct import Named, beside
from moeprobe.results.palette import COLORS

_HEIGHT = 3.6
_MOST_COLUMNS = 3
# Yellow is too light for lines. More groups than colors have other styles.
_COLORS = len(COLORS) - 1
_STYLES = (("-", ""), ("--", " (dashed)"), (":", " (dotted)"))


def draw(table: pd.DataFrame, *, by: str, x: str) -> Figure:
    """Return the figure of a table of curves, a panel per value of the column ``panel``; ``by`` is what it is of."""
    values = list(dict.fromkeys(table["panel"]))
    columns = min(_MOST_COLUMNS, len(values))
    figure, axes = panels.panels(-(-len(values) // columns), columns, width=5.4, height=_HEIGHT, sharey=False)
    panel_values = list(zip(axes.flat, values, strict=False))
    groups = {str(group): number for number, group in enumerate(dict.fromkeys(table["group"]))}
    ends = [_lines(axis, panels.select(table, panel=value), x, groups) for axis, value in panel_values]
    low, high = zip(*(axis.get_ylim() for axis, _ in panel_values), strict=True)
    metric = str(table["metric"].iloc[0])
    for (axis, value), labels in zip(panel_values, ends, strict=True):
        axis.set_ylim(min(low), max(high))
        axis.set(title=f"{by} = {value}" if by else "", xlabel=x)
        axis.set_ylabel(metric.replace("_", " ") if axis in axes[:, 0] else "")
        beside(axis, labels, height=_HEIGHT - 0.6)
    for axis in axes.flat[len(values) :]:
        axis.set_axis_off()
    seeds = table.groupby(["panel", "group"])["run"].nunique().max() > 1
    figure.suptitle("Learning curves")
    explanation = "training: mean of the steps since the previous evaluation; validation: clean images"
    thin = "Thin: one training each; bold: the mean of a group, where all have a value. " if seeds else ""
    return panels.add_caption(figure, f"{thin}{explanation[0].upper()}{explanation[1:]}.")


def _lines(axis: Axes, table: pd.DataFrame, x: str, groups: dict[str, int]) -> list[Named]:
    """Draw the trainings of a panel, colored by the numbers of their groups; returns where each group ends."""
    ends = []
    for group, rows in table.groupby("group", sort=False):
        again, color_index = divmod(groups[str(group)], _COLORS)
        color, (style, style_note) = COLORS[color_index], _STYLES[again % len(_STYLES)]
        runs = [run.sort_values(x, kind="stable") for _, run in rows.groupby("run", sort=False)]
        middle = mean(runs, x)
        if len(runs) > 1:
            for run in runs:
                axis.plot(run[x], run["value"], color=color, linestyle=style, linewidth=0.8, alpha=0.45)
        axis.plot(middle.index, middle, color=color, linestyle=style, linewidth=2)
        last = (middle.index[-1], middle.iloc[-1]) if len(middle) else tuple(runs[0][[x, "value"]].iloc[-1])
        ends.append(Named(float(last[0]), float(last[1]), f"{group}{style_note}", color, style))
    axis.margins(x=0.02)
    return ends


def mean(runs: list[pd.DataFrame], x: str) -> pd.Series:
    """Return the mean over runs by ``x``, where all of them have a value."""
    lines = pd.concat([run.drop_duplicates(x).set_index(x)["value"] for run in runs], axis=1)
    return lines.dropna().mean(axis=1).sort_index()
