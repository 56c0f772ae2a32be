"""Accuracy and steadiness against the number of experts: a line per router and budget."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from moeprobe.results.figures import panels
from moeprobe.results.figures.direct import Named, beside
from moeprobe.results.figures.tradeoff.groups import Group, spread
from moeprobe.results.palette import COLORS

_HEIGHT = 3.2


def draw_experts(numbers: dict[str, pd.DataFrame], groups: Sequence[Group]) -> Figure:
    """Return a panel per number: means of the groups over E, lines through those of one router and budget."""
    lines: dict[str, list[Group]] = {}
    for group in groups:
        if not np.isnan(group.experts):
            lines.setdefault(f"{group.router}, {group.setting}", []).append(group)
    places = sorted({group.experts for line in lines.values() for group in line})
    figure, axes = panels.panels(1, len(numbers), width=5.0, height=_HEIGHT, sharey=False)
    for panel, (title, rows) in zip(axes[0], numbers.items(), strict=True):
        ends = [
            end
            for number, (name, some) in enumerate(lines.items())
            if (end := _line(panel, name, some, rows, color=COLORS[number % (len(COLORS) - 1)])) is not None
        ]
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator(places))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set(xlabel="experts", ylabel=title)
        panel.margins(x=0.05, y=0.08)
        beside(panel, ends, height=_HEIGHT - 0.6)
    return figure


def _line(axes: Axes, name: str, groups: Sequence[Group], rows: pd.DataFrame, *, color: str) -> Named | None:
    """Draw the means with the ranges of the seeds; returns where the line ends, None where there is no point."""
    points = []
    for group in sorted(groups, key=lambda one: one.experts):
        found = spread(group, rows)
        if found is not None:
            axes.plot([group.experts] * 2, [found.low, found.high], "-", color=color, linewidth=2, alpha=0.4)
            points.append((group.experts, found.mean))
    if not points:
        return None
    axes.plot(*np.transpose(points), "o-", color=color, markersize=5, linewidth=1.2)
    return Named(*points[-1], name, color)
