"""Sheets of single images: a copy for each layer and expert, in which only the expert's patches are bright."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.probes.routes.figure import grid
from moeprobe.probes.routes.sheets import Sheet
from moeprobe.results.figures import panels

# Of more experts than this only those that have any of the image, so many at the most.
_MOST_EXPERTS = 16
# What is left of the light of other patches.
_DARK = 0.18
# Patches of which an expert has as much as this, of the most that any has of one, are outlined.
_OUTLINED, _LINE = 0.5, "#E69F00"


def draw(sheets: Sequence[Sheet]) -> dict[str, Figure]:
    """Return a figure per checkpoint and image; a row per layer, a column per expert."""
    images = list(dict.fromkeys(sheet.image_id for sheet in sheets))
    return {f"sheet-{images.index(sheet.image_id) + 1}-{sheet.checkpoint}": _sheet(sheet) for sheet in sheets}


def _sheet(sheet: Sheet) -> Figure:
    experts_shown = {layer: _drawn_experts(marks) for layer, marks in sheet.marks.items()}
    columns = max(1, *(len(experts) for experts in experts_shown.values()))
    figure, axes = grid(len(sheet.marks), columns, width=1.1, height=1.3)
    figure.set_size_inches(max(figure.get_figwidth() - 0.9, 4.2), figure.get_figheight())
    for row, (layer, marks) in enumerate(sheet.marks.items()):
        weight, chosen = marks.sum((1, 2)), experts_shown[layer]
        largest = marks.max()
        for panel, expert in zip(axes[row], chosen, strict=False):
            expert_marks = marks[expert] / (largest or 1.0)
            panel.imshow(_lit(sheet.pixels, expert_marks), interpolation="nearest")
            # A dark patch is no brighter for being lit.
            _outline(panel, expert_marks >= _OUTLINED, sheet.pixels.shape)
            count = f"{weight[expert]:.3g} of {marks[expert].size}"
            panel.set_title(f"expert {expert}", fontsize=8)
            panel.set_xlabel(count, fontsize=7, labelpad=2)
        for panel in axes[row]:
            panel.set_xticks([])
            panel.set_yticks([])
            panel.spines[:].set_visible(False)
        for panel in axes[row][len(chosen) :]:
            panel.set_axis_off()
        axes[row, 0].set_ylabel(layer, fontsize=9)
    figure.suptitle(panels.wrapped(f"{sheet.checkpoint}: {sheet.image_id}", figure.get_figwidth()))
    left_out = " Left out: experts without a patch, or with the fewest." * any(
        len(experts_shown[layer]) < len(marks) for layer, marks in sheet.marks.items()
    )
    return panels.add_caption(
        figure, f"Bright and outlined: the patches of the expert; below: how many.{left_out}"
    )


def _drawn_experts(marks: np.ndarray) -> np.ndarray:
    """Return the experts of ``marks`` ``(E, rows, columns)`` that are drawn, in their order."""
    if len(marks) <= _MOST_EXPERTS:
        return np.arange(len(marks))
    weight = marks.sum((1, 2))
    largest_experts = np.argsort(-weight, kind="stable")[:_MOST_EXPERTS]
    return np.sort(largest_experts[weight[largest_experts] > 0])


def _outline(panel: Axes, mask: np.ndarray, shape: tuple[int, ...]) -> None:
    height, width = shape[0] / mask.shape[0], shape[1] / mask.shape[1]
    boxes = [
        Rectangle(((column + 0.06) * width - 0.5, (row + 0.06) * height - 0.5), 0.88 * width, 0.88 * height)
        for row, column in np.argwhere(mask)
    ]
    panel.add_collection(
        PatchCollection(boxes, facecolor="none", edgecolor=_LINE, linewidth=0.9), autolim=False
    )


def _lit(pixels: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return the pixels ``(S, S, 3)`` with the patches that are not marked ``(rows, columns)`` darkened."""
    rows, columns = marks.shape
    row = np.arange(pixels.shape[0]) * rows // pixels.shape[0]
    column = np.arange(pixels.shape[1]) * columns // pixels.shape[1]
    light = _DARK + (1 - _DARK) * marks[np.ix_(row, column)]
    return (pixels * light[..., None]).clip(0, 1)
