"""The correlation matrix of paired gates as a heat map (Figure 3 of the PRC paper), and the steps from two crops to it.

The steps are drawn with real numbers (Figures 2 and 3 of the paper, steps 1 and 2).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.inputs.modality import TEXT, modality_of
from moeprobe.metrics.analyses.s_matrix import S_DIAGONAL, S_OFFDIAGONAL, S
from moeprobe.results import palette
from moeprobe.results.figures import heat_maps, panels
from moeprobe.results.tables import SHOWN_LAYERS

if TYPE_CHECKING:
    from moeprobe.probes.s_matrix.measure import Steps

# More experts than this, and numbers in the cells would be too small to read.
_MOST_NUMBERED = 10
# With more experts than this, the scale ends below the largest entries, which would leave the rest without contrast.
_MOST_WHOLE = 16
# Small heat maps side by side.
_MOST_COLUMNS = 8
_VIEWS = palette.COLORS[:2]
# Rows of checkpoints whose steps are drawn; the rest look the same.
_MOST_ROWS = 4
_MEANS = {S_DIAGONAL.name: ("mean $S_{ii}$", 2), S_OFFDIAGONAL.name: ("mean $S_{i≠j}$", 3)}


def draw(table: pd.DataFrame, *, colors: Mapping[str, str] | None = None) -> dict[str, Figure]:
    """Return the figure: a row per MoE layer, a column per checkpoint, one color scale for all, from 0.

    Of more than ``SHOWN_LAYERS`` layers the heat maps are small, and a second figure shows the means of the
    diagonal and of the rest along the layers, in the ``colors`` of checkpoints. Empty where no gates are a
    distribution.
    """
    entries = table[table["metric"] == S.name]
    if entries.empty:
        return {}
    layers = panels.layers(entries)
    # The few largest of many would leave the rest without contrast.
    many = entries[["expert", "expert_b"]].max(axis=None) >= _MOST_WHOLE
    highest = entries["value"].quantile(0.99) if many else entries["value"].max()
    scale = Normalize(0, float(highest) if np.isfinite(highest) and highest > 0 else 1.0)
    modality = modality_of(table["tokens"])
    title = f"Correlation of the gates of corresponding {modality.tokens}: {entries['view'].iloc[0]}"
    if len(layers) <= SHOWN_LAYERS:
        return {
            "s-matrix": panels.finish(_large(table, layers, scale), entries, title=title, mark="brackets")
        }
    first = "view 1" if modality is TEXT else "view 1, which covers less"
    notes = [f"Rows: experts of {first}. Columns: experts of view 2"]
    maps = panels.finish(_small(entries, layers, scale), entries, title=title, notes=notes, mark=None)
    means = table[table["metric"].isin(list(_MEANS))]
    lines = _means(means, layers, colors or palette.colors(panels.checkpoints(entries)))
    return {"s-matrix": maps, "s-matrix-layers": panels.finish(lines, panels.ordinary(means), title=title)}


def _bar(figure: Figure, axes: np.ndarray, scale: Normalize, *, many: bool) -> None:
    heat_maps.color_bar(figure, axes, scale, "$S_{ij}$ (ideal: the identity)", largest=0.7, above=many)


def _large(table: pd.DataFrame, layers: Sequence[str], scale: Normalize) -> Figure:
    """Draw a labeled heat map for each layer and checkpoint."""
    entries = table[table["metric"] == S.name]
    checkpoints = panels.checkpoints(entries)
    size = (3.6 * len(checkpoints) + 1.2, 4.0 * len(layers) + 0.7)
    figure, axes = panels.pictures(len(layers), len(checkpoints), size)
    for row, layer in enumerate(layers):
        for column, checkpoint in enumerate(checkpoints):
            rows = panels.ordinary(panels.select(table, layer=layer, checkpoint=checkpoint))
            if not (rows["metric"] == S.name).any():
                axes[row, column].set_axis_off()  # this checkpoint has no such layer
                continue
            _heat_map(axes[row, column], rows, scale)
            axes[row, column].set_title(f"{checkpoint}, {layer}\n{_summary(rows)}")
    _bar(figure, axes, scale, many=bool((entries["value"] > scale.vmax).any()))
    return figure


def _small(entries: pd.DataFrame, layers: Sequence[str], scale: Normalize) -> Figure:
    """Draw small heat maps, some in a row, checkpoint after checkpoint."""
    checkpoints = panels.checkpoints(entries)
    columns = min(len(layers), _MOST_COLUMNS)
    rows_each = -(-len(layers) // columns)
    size = (1.45 * columns + 1.1, 1.6 * rows_each * len(checkpoints) + 0.6)
    figure, axes = panels.pictures(rows_each * len(checkpoints), columns, size)
    for panel in axes.flat:
        panel.set_axis_off()
    for number, checkpoint in enumerate(checkpoints):
        for index, layer in enumerate(layers):
            rows = panels.ordinary(panels.select(entries, layer=layer, checkpoint=checkpoint))
            if rows.empty:
                continue
            panel = axes[number * rows_each + index // columns, index % columns]
            heat_maps.draw(panel, _matrix(rows), scale)
            name = f"{checkpoint}\n{layer}" if index == 0 else layer
            panel.set_title(name, fontsize=8, loc="left")
    _bar(figure, axes, scale, many=bool((entries["value"] > scale.vmax).any()))
    return figure


def _means(table: pd.DataFrame, layers: Sequence[str], colors: Mapping[str, str]) -> Figure:
    """Draw the means of the diagonal and of the rest along the layers."""
    rows = panels.ordinary(table)
    checkpoints = panels.checkpoints(rows)
    figure, axes = panels.panels(1, len(_MEANS), width=5.4, sharey=False)
    for panel, (metric, (name, _)) in zip(axes[0], _MEANS.items(), strict=True):
        for checkpoint, shift in panels.name_shifts(checkpoints):
            of_mean = panels.select(rows, checkpoint=checkpoint, metric=metric)
            panels.draw_over_layers(
                panel, of_mean, layers, color=colors[checkpoint], label=checkpoint, shift=shift
            )
        panel.set_title(name)
        panels.label_layers(panel, layers)
    return figure


def _matrix(rows: pd.DataFrame) -> np.ndarray:
    return rows.pivot(index="expert", columns="expert_b", values="value").to_numpy(float)


def _heat_map(axes: Axes, rows: pd.DataFrame, scale: Normalize) -> None:
    matrix = _matrix(rows[rows["metric"] == S.name])
    # The panels are nearly square as they are; a fixed shape would push headings over one another.
    heat_maps.draw(axes, matrix, scale, aspect="auto")
    first = "" if modality_of(rows["tokens"]) is TEXT else " (covers less)"
    axes.set(xlabel="expert, view 2", ylabel=f"expert, view 1{first}")
    _number_experts(axes, len(matrix))
    if len(matrix) <= _MOST_NUMBERED:
        heat_maps.write_numbers(axes, matrix, scale, size=7.5, written="{:.2f}".format)


def _number_experts(axes: Axes, num_experts: int) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, num_experts, -(-num_experts // 10)))


def _summary(rows: pd.DataFrame) -> str:
    """Return the means of the diagonal and of the rest with their intervals."""
    parts = []
    for metric, (name, decimals) in _MEANS.items():
        row = rows[rows["metric"] == metric].iloc[0]
        value, low, high = (f"{row[column]:.{decimals}f}" for column in ("value", "ci_low", "ci_high"))
        parts.append(f"{name} {value}" + (f" [{low}, {high}]" if pd.notna(row["ci_low"]) else ""))
    return "\n".join(parts)


def draw_steps(steps: "Sequence[Steps]", table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure: a row per checkpoint with both views, both gates, their product, and S from ``table``.

    Empty where there are no steps.
    """
    if not steps:
        return {}
    steps = steps[:_MOST_ROWS]
    figure, axes = panels.pictures(
        len(steps), 5, (13.2, 3.1 * len(steps) + 0.5), width_ratios=(1, 1, 1.25, 1.1, 1.1)
    )
    entries = table[table["metric"] == S.name]
    for row, step_maps in zip(axes, steps, strict=True):
        cells = (step_maps.patch, int(step_maps.pairs.partner[step_maps.patch]))
        for number, (panel, cell) in enumerate(zip(row[:2], cells, strict=True)):
            _view(panel, step_maps, number, cell)
        row[0].set_ylabel(panels.wrap(f"{step_maps.checkpoint}, {step_maps.layer}", 2.4, size=9), fontsize=9)
        _bars(row[2], step_maps.gates)
        _matrix_of_step(figure, row[3], step_maps.product)
        of_layer = panels.select(entries, checkpoint=step_maps.checkpoint, layer=step_maps.layer)
        _matrix_of_step(figure, row[4], _matrix(of_layer))
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


def _view(axes: Axes, step_maps: "Steps", number: int, cell: int) -> None:
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


def _matrix_of_step(figure: Figure, axes: Axes, matrix: np.ndarray) -> None:
    picture = heat_maps.draw(axes, matrix, Normalize(vmin=0))
    axes.set(xlabel="expert, view 2", ylabel="expert, view 1")
    _number_experts(axes, len(matrix))
    bar = figure.colorbar(picture, ax=axes, shrink=0.8, aspect=18)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7)
