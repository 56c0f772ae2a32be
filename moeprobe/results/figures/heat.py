"""What heat maps share: the color map, its bar, and the numbers in the cells."""

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

# Perceptually even, and made to look the same with the common color deficiencies.
MAP = "cividis"


def color_bar(
    figure: Figure, axes: np.ndarray, scale: Normalize, label: str, *, largest: float, above: bool
) -> Colorbar:
    """Add the color bar of all axes, at most ``largest`` of their height; ``above``: some values are off its end."""
    bar = figure.colorbar(
        ScalarMappable(scale, MAP),
        ax=axes,
        shrink=min(largest, 3.2 / figure.get_figheight()),
        aspect=20,
        extend="max" if above else "neither",
    )
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def write_numbers(
    axes: Axes, values: np.ndarray, scale: Normalize, *, size: float, written: Callable[[float], str]
) -> None:
    """Write each known value ``(rows, columns)`` into its cell, dark on bright cells and bright on dark ones."""
    color = mpl.colormaps[MAP]
    for i, j in np.ndindex(values.shape):
        if np.isfinite(values[i, j]):
            bright = np.dot(color(scale(values[i, j]))[:3], (0.299, 0.587, 0.114)) > 0.5
            axes.text(
                j, i, written(float(values[i, j])), ha="center", va="center", fontsize=size,
                color="black" if bright else "white",
            )  # fmt: skip
