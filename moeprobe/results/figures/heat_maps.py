"""Heat maps: their figure, the color map and its bar, the names of rows and columns, and the numbers in the cells."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from moeprobe.results.figures.panels import pictures
from moeprobe.results.numbers import number

# Perceptually even, and made to look the same with the common color deficiencies.
COLOR_MAP = "cividis"
_MARK = "#D55E00"
# More columns or rows than this have no numbers in their cells, and not all of their names.
_MOST_NUMBERED, _MOST_NAMED = 12, 40


def grid(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """Return a figure of heat maps, with axes ``(rows, columns)`` of so many inches."""
    return pictures(rows, columns, (width * columns + 1.3, height * rows + 0.7))


def draw(
    axes: Axes, values: np.ndarray, scale: Normalize, *, aspect: Literal["equal", "auto"] = "equal"
) -> AxesImage:
    """Draw ``values`` ``(rows, columns)`` without a frame; the names of both are there already, or follow."""
    picture = axes.imshow(values, cmap=COLOR_MAP, norm=scale, interpolation="nearest", aspect=aspect)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return picture


def draw_named(
    axes: Axes, values: np.ndarray, scale: Normalize, *, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Draw ``values`` ``(rows, columns)`` with the names of both, and with numbers in cells that are large enough."""
    draw(axes, values, scale, aspect="auto")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        step = -(-len(names) // _MOST_NAMED)
        axis.set_ticks(range(0, len(names), step), list(names)[::step])
    if max(values.shape[1], 1) > _MOST_NUMBERED or values.shape[0] > _MOST_NAMED:
        return
    write_numbers(axes, values, scale, size=7, written=partial(number, decimals=2))


def color_bar(
    figure: Figure,
    axes: np.ndarray,
    scale: Normalize,
    label: str,
    *,
    largest: float = 1.0,
    above: bool = False,
    marks: Mapping[str, float] | None = None,
) -> None:
    """Add the color bar of all axes.

    Args:
        figure: of the axes.
        axes: that have this scale.
        scale: from values to colors.
        label: what the values are.
        largest: of the height of the axes, the most that it takes.
        above: some values are off its end.
        marks: values that are marked, by what they are called.
    """
    bar = figure.colorbar(
        ScalarMappable(scale, COLOR_MAP),
        ax=axes,
        shrink=min(largest, 3.2 / figure.get_figheight()),
        aspect=20,
        extend="max" if above else "neither",
    )
    bar.set_label(label)
    bar.outline.set_visible(False)
    for name, value in (marks or {}).items():
        bar.ax.axhline(value, color=_MARK, linewidth=2)
        bar.ax.annotate(
            name, (0, value), xytext=(-3, 0), textcoords="offset points", xycoords=bar.ax.get_yaxis_transform(),
            ha="right", va="center", fontsize=8, color=_MARK,
        )  # fmt: skip


def write_numbers(
    axes: Axes, values: np.ndarray, scale: Normalize, *, size: float, written: Callable[[float], str]
) -> None:
    """Write each known value ``(rows, columns)`` into its cell, dark on bright cells and bright on dark ones."""
    color = mpl.colormaps[COLOR_MAP]
    for i, j in np.ndindex(values.shape):
        if np.isfinite(values[i, j]):
            bright = np.dot(color(scale(values[i, j]))[:3], (0.299, 0.587, 0.114)) > 0.5
            axes.text(
                j, i, written(float(values[i, j])), ha="center", va="center", fontsize=size,
                color="black" if bright else "white",
            )  # fmt: skip
