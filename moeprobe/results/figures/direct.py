"""Names written next to what they name, in its color: no legend has to be matched by eye."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

# The height of a line of text, of its size.
_LINE = 1.25


class Named(NamedTuple):
    """A point in data coordinates, what it is called, and the look of its line."""

    x: float
    y: float
    text: str
    color: str
    style: str = "-"


def beside(axes: Axes, points: Sequence[Named], *, height: float, size: float = 8) -> None:
    """Write names right of a panel, each as near to the height of its point as the others let it, with a thin line.

    Call it when all else is drawn and both scales are set: the limits stay as they are then.

    Args:
        axes: the panel.
        points: labeled points; points that are not finite are left out.
        height: of the panel, about, in inches.
        size: of the text, in points.
    """
    points = [point for point in points if np.isfinite([point.x, point.y]).all()]
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    to_panel = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_panel.transform((point.x, point.y))[1] for point in points])
    for point, y in zip(points, spread(heights, _LINE * size / 72 / height), strict=True):
        axes.annotate(
            point.text, (point.x, point.y), xytext=(1.04, y), textcoords="axes fraction", color=point.color,
            fontsize=size, va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": point.color, "linestyle": point.style, "linewidth": 0.6, "alpha": 0.6,
                "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Return places ``(n,)`` at least ``gap`` apart, in the order of the wanted ones and nearest to them (squares).

    Between 0 and 1 where that fits.
    """
    if not len(heights):
        return heights
    order = np.argsort(heights, kind="stable")
    steps = gap * np.arange(len(heights))
    room = max(1.0 - steps[-1], 0.0)
    # Apart by the gap is the same as not descending, once each has its number of gaps taken off.
    fitted = isotonic_regression(heights[order] - steps).x.clip(0.0, room) + steps
    positions = np.empty(len(heights))
    positions[order] = fitted
    return positions
