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
        points: what is named; those that are not finite are left out.
        height: of the panel, about, in inches.
        size: of the text, in points.
    """
    points = [one for one in points if np.isfinite([one.x, one.y]).all()]
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    to_panel = axes.transData + axes.transAxes.inverted()
    wanted = np.array([to_panel.transform((one.x, one.y))[1] for one in points])
    for one, place in zip(points, spread(wanted, _LINE * size / 72 / height), strict=True):
        axes.annotate(
            one.text, (one.x, one.y), xytext=(1.04, place), textcoords="axes fraction", color=one.color, fontsize=size,
            va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": one.color, "linestyle": one.style, "linewidth": 0.6, "alpha": 0.6,
                "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(wanted: np.ndarray, gap: float) -> np.ndarray:
    """Return places ``(n,)`` at least ``gap`` apart, in the order of the wanted ones and nearest to them (squares).

    Between 0 and 1 where there is room for that.
    """
    if not len(wanted):
        return wanted
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    room = max(1.0 - steps[-1], 0.0)
    # Apart by the gap is the same as not descending, once each has its number of gaps taken off.
    found = isotonic_regression(wanted[order] - steps).x.clip(0.0, room) + steps
    places = np.empty(len(wanted))
    places[order] = found
    return places
