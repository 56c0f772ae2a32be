"""What the experts specialize in: information along the layers, tokens per expert, per place, and experts in common.

Sheets show single images: a copy for each layer and expert, in which only the expert's patches are bright.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from moeprobe.inputs.data.checkerboard import COLORS
from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.analyses.coactivation import LIFT
from moeprobe.metrics.registry import find
from moeprobe.probes.routes.key_routes import KeyRoutes
from moeprobe.probes.routes.tables import Tables
from moeprobe.results.figures import heat_maps, panels

if TYPE_CHECKING:
    from moeprobe.probes.routes.sheets import Sheet

_INFORMATION = tuple(f"{kind}_information" for kind in ("class", "position", "color"))
# Experts whose maps of places stand side by side, and of which each two are a cell.
_MOST_EXPERTS = 16
_MOST_PAIRS = 64
# With more experts than this, a sheet shows only those that have any patch of the image, and at most this many.
_MOST_ON_SHEET = 16
# What is left of the light of other patches.
_DARK = 0.18
# Patches of which an expert has as much as this, of the most that any has of one, are outlined.
_OUTLINED, _LINE = 0.5, "#E69F00"


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the information on class, place and color along the layers; colors are of checkpoints."""
    rows = panels.ordinary(table[table["metric"].isin(_INFORMATION)])
    kinds = [name for name in _INFORMATION if (rows["metric"] == name).any()]
    if not kinds:
        return {}
    layers, checkpoints = panels.layers(rows), panels.checkpoints(rows)
    figure, axes = panels.panels(1, len(kinds), width=3.6)
    for panel, metric in zip(axes[0], kinds, strict=True):
        panel.axhline(0, color="#808080", linewidth=1)
        for checkpoint, shift in panels.name_shifts(checkpoints):
            of_kind = panels.select(rows, checkpoint=checkpoint, metric=metric)
            panels.draw_over_layers(
                panel, of_kind, layers, color=colors[checkpoint], label=checkpoint, shift=shift
            )
        panel.set_title(find(metric).label())
        panels.label_layers(panel, layers)
    axes[0, 0].set_ylabel("normalized mutual information, chance-corrected")
    title = "What a token's expert says of its image's class, its place, its color"
    return {"information": panels.finish(figure, rows, title=title)}


def experts(tables: Sequence[Tables], table: pd.DataFrame) -> dict[str, Figure]:
    """Return the tokens per expert and layer: a heat map per checkpoint, 1 / E marked in the color bar."""
    if not tables:
        return {}
    checkpoints = list(dict.fromkeys(layer_table.checkpoint for layer_table in tables))
    of = {
        name: [layer_table for layer_table in tables if layer_table.checkpoint == name]
        for name in checkpoints
    }
    numbers = sorted({layer_table.total.shares.shape[-1] for layer_table in tables})
    layers = max(len(part) for part in of.values())
    width = float(np.clip(0.5 * numbers[-1], 2.8, 9.0))
    figure, axes = heat_maps.grid(len(of), 1, width=width, height=max(1.2, 0.4 * layers + 0.7))
    scale = Normalize(0, max(float(layer_table.total.shares.max()) for layer_table in tables))
    for panel, (name, part) in zip(axes[:, 0], of.items(), strict=True):
        num_experts = max(layer_table.total.shares.shape[-1] for layer_table in part)
        values = np.full((len(part), num_experts), np.nan)
        for row, layer_table in enumerate(part):
            values[row, : layer_table.total.shares.shape[-1]] = layer_table.total.shares[0]
        heat_maps.draw_named(
            panel,
            values,
            scale,
            rows=[layer_table.layer for layer_table in part],
            columns=[str(e) for e in range(num_experts)],
        )
        panel.set_title(name)
    axes[-1, 0].set_xlabel("expert")
    marks = {f"1/{number}": 1 / number for number in numbers}
    heat_maps.color_bar(figure, axes, scale, "share of the tokens", marks=marks)
    modality = modality_of([layer_table.tokens for layer_table in tables])
    return {"experts": finish(figure, table, title=f"{_sentence(modality.tokens)} per expert and layer")}


def position_maps(
    tables: Sequence[Tables], grids: Mapping[tuple[str, str], tuple[int, int]], table: pd.DataFrame
) -> dict[str, Figure]:
    """Return, by checkpoint, which share of the tokens at each place an expert has; a row of maps per layer."""
    figures = {}
    for name in dict.fromkeys(layer_table.checkpoint for layer_table in tables):
        part = [layer_table for layer_table in tables if layer_table.checkpoint == name]
        num_experts = max(layer_table.by_place.tokens.shape[-1] for layer_table in part)
        if num_experts > _MOST_EXPERTS:
            continue
        with_grid = all((name, layer_table.layer) in grids for layer_table in part)
        columns = num_experts if with_grid else 1
        width, height = (1.05, 1.2) if with_grid else (6.0, 2.4)
        figure, axes = heat_maps.grid(len(part), columns, width=width, height=height)
        shares_of = [layer_table.by_place.shares[layer_table.by_place.images > 0] for layer_table in part]
        scale = Normalize(0, max(float(shares.max()) for shares in shares_of))
        for row, layer_table in enumerate(part):
            # Only places that some text reaches: texts differ in length. Images have all places.
            shares = shares_of[row]
            if with_grid:
                for expert, panel in enumerate(axes[row]):
                    panel.set_axis_off() if expert >= shares.shape[1] else _map(
                        panel,
                        shares[:, expert].reshape(grids[name, layer_table.layer]),
                        scale,
                        first=row == 0,
                        expert=expert,
                    )
                axes[row, 0].set_ylabel(layer_table.layer, fontsize=9)
            else:
                heat_maps.draw_named(
                    axes[row, 0], shares.T, scale, rows=[str(e) for e in range(shares.shape[1])],
                    columns=[str(position) for position in range(len(shares))],
                )  # fmt: skip
                axes[row, 0].set(title=layer_table.layer, ylabel="expert", xlabel="place in the text")
        heat_maps.color_bar(
            figure, axes, scale, "share of the place", marks={f"1/{num_experts}": 1 / num_experts}
        )
        title = f"{name}: experts at each place"
        figures[f"places-{name}"] = finish(figure, panels.select(table, checkpoint=name), title=title)
    return figures


def _map(panel: Axes, values: np.ndarray, scale: Normalize, *, first: bool, expert: int) -> None:
    panel.imshow(values, cmap=heat_maps.COLOR_MAP, norm=scale, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])
    if first:
        panel.set_title(f"expert {expert}", fontsize=8)


def together(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the lift of each two experts: a row per checkpoint, a column per layer."""
    rows = panels.ordinary(table[table["metric"] == LIFT.name])
    if rows.empty or rows["expert_b"].max() >= _MOST_PAIRS:
        return {}
    layers, checkpoints = panels.layers(rows), panels.checkpoints(rows)
    # With many experts, a few pairs of rare ones would stretch the scale and leave the rest without contrast.
    many = rows["expert_b"].max() >= _MOST_EXPERTS
    highest = float(rows["value"].quantile(0.99) if many else rows["value"].max())
    scale = Normalize(0, highest if highest > 0 else 1.0)
    side = float(np.clip(0.22 * (rows["expert_b"].max() + 1), 3.3, 7.5))
    figure, axes = heat_maps.grid(len(checkpoints), len(layers), width=side, height=side - 0.2)
    for (i, j), panel in np.ndenumerate(axes):
        pair_rows = panels.select(rows, checkpoint=checkpoints[i], layer=layers[j])
        if pair_rows.empty:
            panel.set_axis_off()
            continue
        number = int(pair_rows["expert_b"].max()) + 1
        values = np.full((number, number), np.nan)
        expert_a, expert_b = (pair_rows[name].to_numpy(int) for name in ("expert", "expert_b"))
        values[expert_a, expert_b] = values[expert_b, expert_a] = pair_rows["value"].to_numpy(float)
        names = [str(expert) for expert in range(number)]
        heat_maps.draw_named(panel, values, scale, rows=names, columns=names)
        panel.set(title=f"{checkpoints[i]}, {layers[j]}", xlabel="expert", ylabel="expert")
    marks = {"independent": 1.0} if scale.vmax and scale.vmax >= 1 else {}
    heat_maps.color_bar(
        figure, axes, scale, "lift of two experts", marks=marks, above=bool(rows["value"].max() > highest)
    )
    tokens = modality_of(rows["tokens"]).tokens
    notes = [f"White: an expert with itself, or without any {tokens}"]
    return {
        "coactivation": finish(figure, rows, title=f"Experts that process the same {tokens}", notes=notes)
    }


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# Classes and their experts: heat maps with the key route outlined, and how far classes are apart.

# Layers side by side.
_MOST_COLUMNS = 4


def classes(found: Sequence[Tables], routes: Sequence[KeyRoutes], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, by checkpoint, the share of each class' tokens that each expert has; outlined the expert of most."""
    figures = {}
    for key_routes in routes:
        part = [tables for tables in found if tables.checkpoint == key_routes.checkpoint]
        has_tokens = part[0].by_class.tokens.sum(-1) > 0
        shares = [tables.by_class.shares[has_tokens] for tables in part]
        order = np.lexsort((np.arange(len(key_routes.names)), key_routes.groups))
        columns = min(len(part), _MOST_COLUMNS)
        rows = -(-len(part) // columns)
        experts = max(share.shape[1] for share in shares)
        width, height = np.clip(0.42 * experts, 2.4, 8.0), np.clip(0.27 * len(order), 1.8, 14.0)
        figure, axes = heat_maps.grid(rows, columns, width=float(width), height=float(height))
        scale = Normalize(0, max(float(share.max()) for share in shares))
        for index, panel in enumerate(axes.flat):
            if index >= len(part):
                panel.set_axis_off()
                continue
            # The names once, at the left, with the number of the class' route.
            names = [f"{key_routes.names[row]}  ({key_routes.groups[row]})" for row in order]
            heat_maps.draw_named(
                panel, shares[index][order], scale, rows=names if index % columns == 0 else [""] * len(names),
                columns=[str(expert) for expert in range(shares[index].shape[1])],
            )  # fmt: skip
            outline(panel, [(row, int(key_routes.routes[image, index])) for row, image in enumerate(order)])
            panel.set(title=part[index].layer, xlabel="expert")
        number = part[0].by_class.tokens.shape[-1]
        heat_maps.color_bar(
            figure, axes, scale, "share of the class' tokens", marks={f"1/{number}": 1 / number}
        )
        notes = [
            "Outlined: the expert of most tokens, the class' key route; in brackets: the number of the route"
        ]
        title = f"{key_routes.checkpoint}: experts of each class"
        rests = panels.select(table, checkpoint=key_routes.checkpoint)
        figures[f"classes-{key_routes.checkpoint}"] = finish(figure, rests, title=title, notes=notes)
    return figures


def colors(tables: Sequence[Tables], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, of checkerboards and by checkpoint, the share of the patches of each color that each expert has."""
    figures = {}
    for name in dict.fromkeys(
        layer_table.checkpoint for layer_table in tables if layer_table.by_color is not None
    ):
        part = [
            (layer_table.layer, layer_table.by_color.shares)
            for layer_table in tables
            if layer_table.checkpoint == name and layer_table.by_color
        ]
        columns = min(len(part), _MOST_COLUMNS)
        num_experts = max(shares.shape[1] for _, shares in part)
        width = float(np.clip(0.42 * num_experts, 2.4, 8.0))
        figure, axes = heat_maps.grid(-(-len(part) // columns), columns, width=width, height=2.2)
        scale = Normalize(0, 1)
        for index, panel in enumerate(axes.flat):
            if index >= len(part):
                panel.set_axis_off()
                continue
            layer, shares = part[index]
            heat_maps.draw_named(
                panel, shares, scale, rows=list(COLORS) if index % columns == 0 else [""] * len(COLORS),
                columns=[str(expert) for expert in range(shares.shape[1])],
            )  # fmt: skip
            panel.set(title=layer, xlabel="expert")
        heat_maps.color_bar(
            figure, axes, scale, "share of the color's patches", marks={f"1/{num_experts}": 1 / num_experts}
        )
        rests = panels.select(table, checkpoint=name)
        figures[f"colors-{name}"] = finish(figure, rests, title=f"{name}: experts of each color")
    return figures


def distances(routes: Sequence[KeyRoutes], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, by checkpoint, how far the experts of each two classes are apart; similar classes side by side."""
    figures = {}
    for key_routes in routes:
        order = hierarchy.leaves_list(
            hierarchy.linkage(squareform(key_routes.distances, checks=False), "average")
        )
        side = float(np.clip(0.42 * len(order), 3.2, 12))
        figure, axes = heat_maps.grid(1, 1, width=side, height=side)
        values = key_routes.distances[np.ix_(order, order)]
        scale = Normalize(0, float(values.max()) or 1.0)
        names = [key_routes.names[row] for row in order]
        heat_maps.draw_named(axes[0, 0], values, scale, rows=names, columns=names)
        axes[0, 0].tick_params(axis="x", rotation=90 if max(map(len, names)) > 2 else 0)
        heat_maps.color_bar(figure, axes, scale, "Jensen-Shannon distance, mean over layers")
        notes = ["In the order of a clustering (average linkage)"]
        rests = panels.select(table, checkpoint=key_routes.checkpoint)
        title = f"{key_routes.checkpoint}: how far the experts of classes are apart"
        figures[f"class-distances-{key_routes.checkpoint}"] = finish(figure, rests, title=title, notes=notes)
    return figures


def finish(figure: Figure, shown_table: pd.DataFrame, *, title: str, notes: Sequence[str] = ()) -> Figure:
    """Add heading and caption: the content, and the number of images."""
    images = modality_of(shown_table["tokens"]).format_count(f"{int(shown_table['images'].max()):,}")
    return panels.finish(figure, shown_table, title=title, notes=[*notes, f"From {images}"], mark=None)


def outline(axes: Axes, cells: Sequence[tuple[int, int]]) -> None:
    """Outline cells ``(row, column)``."""
    for row, column in cells:
        for color, width in (("white", 3.0), ("#D55E00", 1.6)):
            box = Rectangle(
                (column - 0.44, row - 0.44), 0.88, 0.88, fill=False, edgecolor=color, linewidth=width
            )
            axes.add_patch(box)


def draw_sheets(sheets: "Sequence[Sheet]") -> dict[str, Figure]:
    """Return a figure per checkpoint and image; a row per layer, a column per expert."""
    images = list(dict.fromkeys(sheet.image_id for sheet in sheets))
    return {f"sheet-{images.index(sheet.image_id) + 1}-{sheet.checkpoint}": _sheet(sheet) for sheet in sheets}


def _sheet(sheet: "Sheet") -> Figure:
    experts_shown = {layer: _drawn_experts(marks) for layer, marks in sheet.marks.items()}
    columns = max(1, *(len(experts) for experts in experts_shown.values()))
    figure, axes = heat_maps.grid(len(sheet.marks), columns, width=1.1, height=1.3)
    figure.set_size_inches(max(figure.get_figwidth() - 0.9, 4.2), figure.get_figheight())
    for row, (layer, marks) in enumerate(sheet.marks.items()):
        weight, experts_of_layer = marks.sum((1, 2)), experts_shown[layer]
        largest = marks.max()
        for panel, expert in zip(axes[row], experts_of_layer, strict=False):
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
        for panel in axes[row][len(experts_of_layer) :]:
            panel.set_axis_off()
        axes[row, 0].set_ylabel(layer, fontsize=9)
    figure.suptitle(panels.wrap(f"{sheet.checkpoint}: {sheet.image_id}", figure.get_figwidth()))
    left_out = " Left out: experts without a patch, or with the fewest." * any(
        len(experts_shown[layer]) < len(marks) for layer, marks in sheet.marks.items()
    )
    return panels.add_caption(
        figure, f"Bright and outlined: the patches of the expert; below: how many.{left_out}"
    )


def _drawn_experts(marks: np.ndarray) -> np.ndarray:
    """Return the experts of ``marks`` ``(E, rows, columns)`` that are drawn, in their order."""
    if len(marks) <= _MOST_ON_SHEET:
        return np.arange(len(marks))
    weight = marks.sum((1, 2))
    largest_experts = np.argsort(-weight, kind="stable")[:_MOST_ON_SHEET]
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
