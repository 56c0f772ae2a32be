"""The figure of tails: how many inputs change more than a share of their tokens, a panel per layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from moeprobe.inputs.modality import Modality
from moeprobe.results.figures import panels
from moeprobe.results.palette import colors

# Curves of one panel that can be told apart.
_MOST_CURVES = 8


@dataclass(frozen=True)
class TailCurve:
    """One cell of one checkpoint.

    Attributes:
        cell: checkpoint, layer, view and severity.
        shares: of tokens that change, in each input ``(n,)``.
        quantiles: its rows in the table.
    """

    cell: Mapping[str, Any]
    shares: NDArray[np.float64]
    quantiles: pd.DataFrame

    def label(self, cells: Sequence["TailCurve"]) -> str:
        """Return what tells it from others of a panel: the checkpoint, and view and severity where these differ."""
        parts = [str(self.cell["checkpoint"])]
        parts += [str(self.cell["view"])] * (len({cell.cell["view"] for cell in cells}) > 1)
        step = self.cell["severity"]
        if step == step and len({cell.cell["severity"] for cell in cells}) > 1:
            parts.append(f"severity {step:g}")
        return ", ".join(parts)


def draw(curves: Sequence[TailCurve], modality: Modality) -> Figure:
    """Return the figure: of many layers the first and the last, and of many severities the largest."""
    layers, notes = panels.shown_layers(list(dict.fromkeys(curve.cell["layer"] for curve in curves)))
    visible = [curve for curve in curves if curve.cell["layer"] in layers]
    if len(visible) > _MOST_CURVES * len(layers):
        largest = max((curve.cell["severity"] for curve in visible), default=np.nan)
        of_largest = [curve for curve in visible if curve.cell["severity"] == largest]
        if of_largest:
            visible = of_largest
            notes.append(f"At severity {largest:g}")
    labels = list(dict.fromkeys(curve.label(visible) for curve in visible))
    if len(labels) > _MOST_CURVES:
        notes.append(f"The first {_MOST_CURVES} of {len(labels)}")
    palette = colors(labels[:_MOST_CURVES])
    figure, axes = panels.panels(1, len(layers))
    for panel, layer in zip(axes[0], layers, strict=True):
        for curve in visible:
            label = curve.label(visible)
            if curve.cell["layer"] == layer and label in palette:
                _draw_curve(panel, curve, color=palette[label], label=label)
        panel.set_title(layer)
        panel.set_xlim(-0.02, 1.02)
        panel.set_xlabel(f"share of {modality.tokens} that change experts")
    axes[0, 0].set_ylim(-0.02, 1.02)
    axes[0, 0].set_ylabel(f"share of {modality.units} that change more")
    counts = sorted({len(curve.shares) for curve in visible})
    number = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
    figure.suptitle(f"The {modality.units} that change most")
    notes.append(
        f"{number} {modality.units}; bars: 95 % intervals of the 50, 90 and 99 % quantiles, where there are any"
    )
    return panels.add_caption(figure, ". ".join(notes) + ".")


def _draw_curve(axes: Axes, curve: TailCurve, *, color: str, label: str) -> None:
    """Draw the share of inputs above each share of tokens, and the intervals of quantiles."""
    ordered = np.concatenate([[0.0], np.sort(curve.shares), [1.0]])
    above = np.concatenate([[1.0], 1 - np.arange(1, len(curve.shares) + 1) / len(curve.shares), [0.0]])
    axes.step(ordered, above, where="post", color=color, label=label)
    rows = curve.quantiles[curve.quantiles["ci_low"].notna()]
    axes.hlines(1 - rows["at"], rows["ci_low"], rows["ci_high"], color=color, linewidth=3, alpha=0.5)
