"""Numbers of many trainings, a panel per number and a line per router: means over seeds with their range.

What one panel says stands above it: how far the means are apart, and how far the seeds of one of them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moeprobe.metrics.registry import find
from moeprobe.results.figures import panels
from moeprobe.results.figures.tradeoff.groups import Group, Spread, deviations, spread
from moeprobe.results.palette import COLORS

MARKS = "osD^vP*X"
_GRAY = "#606060"
# The height of a line, in inches, and what a panel needs besides.
_LINE, _REST = 0.24, 1.0
_APART = 0.34
# Labels of more letters than this make a figure wider, by inches for each.
_LETTERS, _LETTER = 40, 0.12


def draw_rows(
    numbers: dict[str, pd.DataFrame],
    groups: Sequence[Group],
    *,
    lacking: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Return a figure of numbers by their titles, a row per cell each; title, caption and legend come later.

    ``lacking`` says of cells why they have no numbers: "diverged".
    """
    labels = list(dict.fromkeys(group.label for group in groups))
    # No panel alone in the last row.
    columns = min(4 if len(numbers) % 3 == 1 else 3, len(numbers))
    rows = -(-len(numbers) // columns)
    # The first panel shares its width with the labels.
    width = 3.6 + _LETTER / columns * max(0, max(map(len, labels)) - _LETTERS)
    figure, axes = panels.panels(rows, columns, width=width, height=_LINE * (len(labels) + 1) + _REST)
    for panel, (title, found) in zip(axes.flat, numbers.items(), strict=False):
        _panel(panel, found, groups, labels, title=title, lacking=lacking)
    for panel in axes.flat[len(numbers) :]:
        panel.set_axis_off()
    for row in axes:
        row[0].set_yticks(range(len(labels) + 1), [*labels, "95 % over images"])
        row[0].set_ylim(len(labels) + 0.5, -0.7)
    for size, look in looks(groups).items():
        names = dict.fromkeys(group.setting for group in groups if group.size == size or np.isnan(size))
        axes[0, 0].plot([], [], look["fmt"], color=look["color"], label=", ".join(names))
    return figure


def looks(groups: Sequence[Group]) -> dict[float, dict[str, str]]:
    """Return mark and color of each budget."""
    sizes = sorted({group.size for group in groups if not np.isnan(group.size)}) or [float("nan")]
    return {
        size: {"fmt": MARKS[number % len(MARKS)], "color": COLORS[number % len(COLORS)]}
        for number, size in enumerate(sizes)
    }


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    groups: Sequence[Group],
    labels: Sequence[str],
    *,
    title: str,
    lacking: Mapping[str, str],
) -> None:
    styles = looks(groups)
    sizes = list(styles)
    low, high = np.inf, -np.inf
    absent = partial(axes.text, 0.02, fontsize=7, fontstyle="italic", color=_GRAY, va="center",
                     transform=axes.get_yaxis_transform())  # fmt: skip
    for label in labels:
        here = [group for group in groups if group.label == label]
        there = [(group, found) for group in here if (found := spread(group, rows)) is not None]
        y = labels.index(label)
        own = sorted({group.size for group, _ in there if group.size in sizes}) or [sizes[0]]
        for group, found in there:
            number = own.index(group.size) if group.size in own else 0
            place = y + _APART * (number - (len(own) - 1) / 2)
            _mark(axes, found, place, **styles[own[number]])
            low, high = min(low, found.low), max(high, found.high)
        missing = [
            lacking[name]
            for group in here
            for name in group.cells
            if name in lacking and name not in rows.index
        ]
        if missing:
            absent(y + (0.42 if there else 0), ", ".join(dict.fromkeys(missing)) + f" ({len(missing)})")
        elif not there:
            absent(y, "does not exist")
    _scale_bar(axes, rows, len(labels), middle=(low + high) / 2)
    better = find(rows["metric"].iloc[0]).direction
    told = deviations(list(groups), rows)
    said = "" if told is None else f"\nsd of the means {told[0]:.2g}, of seeds {told[1]:.2g}"
    axes.set_title(f"{title}{said}", fontsize=9, loc="left")
    axes.set_xlabel({1: "better →", -1: "← better", 0: ""}[better], fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8)
    axes.margins(x=0.08)
    axes.axhline(len(labels) - 0.5, color="#b0b0b0", linewidth=0.6)


def _mark(axes: Axes, found: Spread, y: float, *, fmt: str, color: str) -> None:
    axes.plot(
        [found.low, found.high], [y, y], "-", color=color, linewidth=2, alpha=0.45, solid_capstyle="butt"
    )
    axes.plot([found.mean], [y], fmt, color=color, markersize=5)


def _scale_bar(axes: Axes, rows: pd.DataFrame, y: float, *, middle: float) -> None:
    """Draw how wide the interval over images of one training is, as the median of them; nothing without any."""
    width = (rows["ci_high"] - rows["ci_low"]).median()
    if not pd.isna(width):
        ends = [middle - width / 2, middle + width / 2]
        axes.plot(ends, [y, y], "|-", color=_GRAY, linewidth=1.2, markersize=6)
