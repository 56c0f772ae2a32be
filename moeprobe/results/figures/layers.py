"""MoE layers as an axis: for models with more layers than panels fit on a page."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from moeprobe.results.figures import panels

# Labels that fit side by side under one panel.
_MOST_LABELS = 12
_NUMBER = re.compile(r"\d+")


def draw_line(
    axes: Axes,
    rows: pd.DataFrame,
    layers: Sequence[str],
    *,
    color: str,
    label: str,
    shift: float = 0.0,
    style: str = "o-",
) -> None:
    """Draw values with their bars over the layers; ``shift`` offsets one line from another, in layers."""
    by_layer = rows.drop_duplicates("layer").set_index("layer").reindex(list(layers))
    x = np.arange(len(layers)) + shift
    panels.points(axes, x, by_layer, color=color, label=label, fmt=style, size=3.5, width=1.0)
    panels.name_collapsed(axes, x, by_layer, color=color)


def shifts(count: int) -> np.ndarray:
    """Return the offsets of so many lines."""
    return 0.5 * (np.arange(count) - (count - 1) / 2) / max(count, 1)


def label_axis(axes: Axes, layers: Sequence[str], *, with_label: bool = True) -> None:
    """Let x be the layers, by their numbers where nothing else distinguishes them; ``with_label``: and say so."""
    numbers = [_NUMBER.findall(name) for name in layers]
    numbered = len({_NUMBER.sub("#", name) for name in layers}) == 1 and all(
        len(digits) == 1 for digits in numbers
    )
    labels = [digits[0] for digits in numbers] if numbered else list(layers)
    step = -(-len(layers) // _MOST_LABELS) if numbered else -(-len(layers) // (2 * _MOST_LABELS))
    ticks = range(0, len(layers), step)
    axes.set_xticks(list(ticks), [labels[tick] for tick in ticks], rotation=0 if numbered else 90)
    axes.set_xlim(-0.6, len(layers) - 0.4)
    if with_label:
        axes.set_xlabel(f"MoE layer ({_NUMBER.sub('N', layers[0])})" if numbered else "MoE layer")
