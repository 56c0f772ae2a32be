"""Classes and their experts: heat maps with the key route outlined, and how far classes are apart."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from moeprobe.inputs.data.checkerboard import COLORS
from moeprobe.probes.routes import heat
from moeprobe.probes.routes.key_routes import KeyRoutes
from moeprobe.probes.routes.tables import Tables
from moeprobe.results.figures import panels

# Layers side by side.
_MOST_COLUMNS = 4


def classes(found: Sequence[Tables], routes: Sequence[KeyRoutes], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, by checkpoint, the share of each class' tokens that each expert has; outlined the expert of most."""
    figures = {}
    for one in routes:
        part = [tables for tables in found if tables.checkpoint == one.checkpoint]
        there = part[0].by_class.tokens.sum(-1) > 0
        shares = [tables.by_class.shares[there] for tables in part]
        order = np.lexsort((np.arange(len(one.names)), one.groups))
        columns = min(len(part), _MOST_COLUMNS)
        rows = -(-len(part) // columns)
        experts = max(share.shape[1] for share in shares)
        width, height = np.clip(0.42 * experts, 2.4, 8.0), np.clip(0.27 * len(order), 1.8, 14.0)
        figure, axes = heat.grid(rows, columns, width=float(width), height=float(height))
        scale = Normalize(0, max(float(share.max()) for share in shares))
        for place, panel in enumerate(axes.flat):
            if place >= len(part):
                panel.set_axis_off()
                continue
            # The names once, at the left, with the number of the class' route.
            names = [f"{one.names[row]}  ({one.groups[row]})" for row in order]
            heat.heat_map(
                panel, shares[place][order], scale, rows=names if place % columns == 0 else [""] * len(names),
                columns=[str(expert) for expert in range(shares[place].shape[1])],
            )  # fmt: skip
            heat.outline(panel, [(row, int(one.routes[image, place])) for row, image in enumerate(order)])
            panel.set(title=part[place].layer, xlabel="expert")
        number = part[0].by_class.tokens.shape[-1]
        heat.bar(figure, axes, scale, "share of the class' tokens", mark={f"1/{number}": 1 / number})
        notes = [
            "Outlined: the expert of most tokens, the class' key route; in brackets: the number of the route"
        ]
        title = f"{one.checkpoint}: experts of each class"
        rests = panels.select(table, checkpoint=one.checkpoint)
        figures[f"classes-{one.checkpoint}"] = heat.finish(figure, rests, title=title, notes=notes)
    return figures


def colors(found: Sequence[Tables], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, of checkerboards and by checkpoint, the share of the patches of each color that each expert has."""
    figures = {}
    for name in dict.fromkeys(one.checkpoint for one in found if one.by_color is not None):
        part = [(one.layer, one.by_color.shares) for one in found if one.checkpoint == name and one.by_color]
        columns = min(len(part), _MOST_COLUMNS)
        most = max(shares.shape[1] for _, shares in part)
        width = float(np.clip(0.42 * most, 2.4, 8.0))
        figure, axes = heat.grid(-(-len(part) // columns), columns, width=width, height=2.2)
        scale = Normalize(0, 1)
        for place, panel in enumerate(axes.flat):
            if place >= len(part):
                panel.set_axis_off()
                continue
            layer, shares = part[place]
            heat.heat_map(
                panel, shares, scale, rows=list(COLORS) if place % columns == 0 else [""] * len(COLORS),
                columns=[str(expert) for expert in range(shares.shape[1])],
            )  # fmt: skip
            panel.set(title=layer, xlabel="expert")
        heat.bar(figure, axes, scale, "share of the color's patches", mark={f"1/{most}": 1 / most})
        rests = panels.select(table, checkpoint=name)
        figures[f"colors-{name}"] = heat.finish(figure, rests, title=f"{name}: experts of each color")
    return figures


def distances(routes: Sequence[KeyRoutes], table: pd.DataFrame) -> dict[str, Figure]:
    """Return, by checkpoint, how far the experts of each two classes are apart; similar classes side by side."""
    figures = {}
    for one in routes:
        order = hierarchy.leaves_list(hierarchy.linkage(squareform(one.distances, checks=False), "average"))
        side = float(np.clip(0.42 * len(order), 3.2, 12))
        figure, axes = heat.grid(1, 1, width=side, height=side)
        values = one.distances[np.ix_(order, order)]
        scale = Normalize(0, float(values.max()) or 1.0)
        names = [one.names[row] for row in order]
        heat.heat_map(axes[0, 0], values, scale, rows=names, columns=names)
        axes[0, 0].tick_params(axis="x", rotation=90 if max(map(len, names)) > 2 else 0)
        heat.bar(figure, axes, scale, "Jensen-Shannon distance, mean over layers", mark={})
        notes = ["In the order of a clustering (average linkage)"]
        rests = panels.select(table, checkpoint=one.checkpoint)
        title = f"{one.checkpoint}: how far the experts of classes are apart"
        figures[f"class-distances-{one.checkpoint}"] = heat.finish(figure, rests, title=title, notes=notes)
    return figures
