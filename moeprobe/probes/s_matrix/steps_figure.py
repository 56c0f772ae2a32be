"""From two crops to S, drawn with real numbers (Figures 2 and 3 of the PRC paper, steps 1 and 2)."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.metrics.analyses.s_matrix import S
from moeprobe.probes.s_matrix.steps import Steps
from moeprobe.results.figures import STYLE, panels
from moeprobe.results.palette import COLORS

_MAP = "cividis"
_VIEWS = (COLORS[0], COLORS[1])
# Rows of checkpoints; the rest look the same.
_MOST_ROWS = 4


def draw(steps: Sequence[Steps], table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure: a row per checkpoint with both views, both gates, their product, and S from ``table``.

    Empty where there are no steps.
    """
    if not steps:
        return {}
    steps = steps[:_MOST_ROWS]
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(13.2, 3.1 * len(steps) + 0.5), layout="constrained")
        axes = figure.subplots(len(steps), 5, squeeze=False, width_ratios=(1, 1, 1.25, 1.1, 1.1))
    entries = table[table["metric"] == S.name]
    for row, step_maps in zip(axes, steps, strict=True):
        cells = (step_maps.patch, int(step_maps.pairs.partner[step_maps.patch]))
        for number, (panel, cell) in enumerate(zip(row[:2], cells, strict=True)):
            _view(panel, step_maps, number, cell)
        row[0].set_ylabel(
            panels.wrapped(f"{step_maps.checkpoint}, {step_maps.layer}", 2.4, size=9), fontsize=9
        )
        _bars(row[2], step_maps.gates)
        _matrix(figure, row[3], step_maps.product)
        of_layer = panels.select(entries, checkpoint=step_maps.checkpoint, layer=step_maps.layer)
        _matrix(
            figure, row[4], of_layer.pivot(index="expert", columns="expert_b", values="value").to_numpy(float)
        )
    heads = ("1. view 1", "view 2", "2. gates $r_1$, $r_2$ of the patch", "3. $r_1 r_2^T$ of this pair")
    for panel, head in zip(axes[0], (*heads, "4. $S$: E × the mean over all pairs"), strict=True):
        panel.set_title(head, fontsize=10)
    (images,) = set(entries["images"]) if entries["images"].nunique() == 1 else (entries["images"].max(),)
    view, first = entries["view"].iloc[0], steps[0].pairs
    figure.suptitle(f"From two views of a patch to S: {view}, {first.image_id}")
    note = (
        "Outlined: the pair of patches nearest to the center of view 1, which covers less; the image is the first of "
        f"the run. S rests on {images:,} images and all their pairs; each picture has a scale of its own, from 0. "
        "Ideal: S is the identity."
    )
    return {"s-matrix-steps": panels.add_caption(figure, note)}


def _view(axes: Axes, step_maps: Steps, number: int, cell: int) -> None:
    pixels, grid = step_maps.pairs.pixels[number], step_maps.pairs.grid
    side = grid.patch_size
    extent = (0, pixels.shape[1], pixels.shape[0], 0)
    axes.imshow(pixels.clip(0, 1), extent=extent, interpolation="nearest", vmin=0, vmax=1)
    row, column = divmod(cell, grid.columns)
    for color, width in (("white", 4.5), (_VIEWS[number], 2.5)):
        axes.add_patch(
            Rectangle((column * side, row * side), side, side, fill=False, edgecolor=color, linewidth=width)
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"patch in row {row + 1}, column {column + 1}", fontsize=9)


def _bars(axes: Axes, gates: tuple[np.ndarray, np.ndarray]) -> None:
    experts = np.arange(len(gates[0]))
    for number, (gate_values, color) in enumerate(zip(gates, _VIEWS, strict=True)):
        axes.bar(experts + 0.4 * (number - 0.5), gate_values, 0.4, color=color, label=f"view {number + 1}")
    axes.set(xlabel="expert", ylabel="gate", ylim=(0, 1))
    axes.set_xticks(experts[:: -(-len(experts) // 10)])


def _matrix(figure: Figure, axes: Axes, matrix: np.ndarray) -> None:
    picture = axes.imshow(matrix, cmap=_MAP, vmin=0, interpolation="nearest")
    axes.set(xlabel="expert, view 2", ylabel="expert, view 1")
    step = -(-len(matrix) // 10)
    axes.set_xticks(range(0, len(matrix), step))
    axes.set_yticks(range(0, len(matrix), step))
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(picture, ax=axes, shrink=0.8, aspect=18)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7)
