"""Heat maps of shares, with numbers in cells that have room for them."""

from collections.abc import Sequence
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.inputs.modality import modality_of
from moeprobe.results.figures import STYLE, panels
from moeprobe.results.figures.heat import MAP, color_bar, write_numbers
from moeprobe.results.numbers import number

# More columns or rows than this have no numbers in their cells, and not all of their names.
_MOST_NUMBERED, _MOST_NAMED = 12, 40


def grid(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """Return a figure of heat maps, with axes ``(rows, columns)`` of so many inches."""
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(width * columns + 1.3, height * rows + 0.7), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, axes


def finish(figure: Figure, drawn: pd.DataFrame, *, title: str, notes: Sequence[str] = ()) -> Figure:
    """Add heading and caption: what is shown, and of how many images."""
    images = modality_of(drawn["tokens"]).counted(f"{int(drawn['images'].max()):,}")
    return panels.finish(figure, drawn, title=title, notes=[*notes, f"From {images}"], mark=None)


def heat_map(
    axes: Axes, values: np.ndarray, scale: Normalize, *, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Draw ``values`` ``(rows, columns)`` with the names of both."""
    axes.imshow(values, cmap=MAP, norm=scale, interpolation="nearest", aspect="auto")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        step = -(-len(names) // _MOST_NAMED)
        axis.set_ticks(range(0, len(names), step), list(names)[::step])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if max(values.shape[1], 1) > _MOST_NUMBERED or values.shape[0] > _MOST_NAMED:
        return
    write_numbers(axes, values, scale, size=7, written=partial(number, decimals=2))


def outline(axes: Axes, places: Sequence[tuple[int, int]]) -> None:
    """Outline cells ``(row, column)``."""
    for row, column in places:
        for color, width in (("white", 3.0), ("#D55E00", 1.6)):
            box = Rectangle(
                (column - 0.44, row - 0.44), 0.88, 0.88, fill=False, edgecolor=color, linewidth=width
            )
            axes.add_patch(box)


def bar(
    figure: Figure,
    axes: np.ndarray,
    scale: Normalize,
    label: str,
    *,
    mark: dict[str, float],
    above: bool = False,
) -> None:
    """Add the color bar of all axes, with marked values by what they are called; ``above``: some are off its end."""
    added = color_bar(figure, axes, scale, label, largest=1.0, above=above)
    for name, value in mark.items():
        added.ax.axhline(value, color="#D55E00", linewidth=2)
        added.ax.annotate(
            name, (0, value), xytext=(-3, 0), textcoords="offset points", xycoords=added.ax.get_yaxis_transform(),
            ha="right", va="center", fontsize=8, color="#D55E00",
        )  # fmt: skip
