"""What each expert of a layer is worth, and how far the outputs of experts are from one another."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.expert_outputs import EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED
from moeprobe.metrics.analyses.experts import BANNED, DISPENSABLE, PER_EXPERT, intervention_metric
from moeprobe.probes.experts.redundancy import dispensable
from moeprobe.results.figures import heat_maps, panels

# More experts than this, and numbers in the cells would be too small to read.
_MOST_NUMBERED = 10
# A share of a panel's height, left free above and below: a line at the edge would be cut.
_MARGIN = 0.06
_TITLES = dict(zip(PER_EXPERT, ("without the expert", "the expert on every token"), strict=True))


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the prices of experts, and the heat maps of distances where outputs are known.

    Of more than ``SHOWN_LAYERS`` layers the first and the last are drawn.
    """
    return _prices(table, colors) | _distances(table)


def _prices(table: pd.DataFrame, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a row per layer, a panel per kind of intervention, random sets as a line.

    Where there is a limit of the loss, experts that may go below it have a ring.
    """
    names = {kind: intervention_metric("price", kind).name for kind in PER_EXPERT}
    rows = table[table["metric"].isin(names.values()) & table["value"].notna() & table["expert"].notna()]
    if rows.empty:
        return {}
    layers, notes = panels.shown_layers(panels.layers(rows))
    figure, axes = panels.panels(len(layers), len(names), width=4.4, height=2.6, sharey=False)
    checkpoints = panels.checkpoints(rows)
    bounds = dispensable(table)
    random = panels.select(table, metric=intervention_metric("price", "random").name)
    limits = table.loc[table["metric"] == DISPENSABLE.name, "severity"].unique()
    for across, (kind, metric) in enumerate(names.items()):
        for down, layer in enumerate(layers):
            panel = axes[down, across]
            for checkpoint, shift in panels.name_shifts(checkpoints):
                of_one = panels.select(rows, checkpoint=checkpoint, layer=layer, metric=metric)
                x = of_one["expert"].to_numpy(float) + shift
                panels.points(panel, x, of_one, color=colors[checkpoint], label=checkpoint, size=4)
                if kind == BANNED:
                    highest = panels.select(bounds, checkpoint=checkpoint, layer=layer)
                    positions = highest["expert"].to_numpy(float) + shift
                    panel.scatter(positions, highest["highest"], marker="_", s=90, color=colors[checkpoint])
                    for limit in limits:
                        is_below = highest["highest"] < limit
                        panel.scatter(
                            positions[is_below], highest.loc[is_below, "price"], s=110, facecolors="none",
                            edgecolors=colors[checkpoint],
                        )  # fmt: skip
                        panel.axhline(limit, color="black", linestyle=":", linewidth=1)
                for level in panels.select(random, checkpoint=checkpoint, layer=layer)["value"]:
                    panel.axhline(level, color=colors[checkpoint], linestyle="--", linewidth=1)
            panel.margins(y=_MARGIN)
            panel.xaxis.get_major_locator().set_params(integer=True)
            if down == 0:
                panel.set_title(_TITLES[kind])
            if down == len(layers) - 1:
                panel.set_xlabel("expert")
            if across == 0:
                panel.set_ylabel(f"{layer}\nrise of the loss (nats)")
    title = "What a layer loses without an expert, and with one on every token"
    notes = [
        "Dashed: sets drawn at random",
        *(["Dashes above the bars: upper ends for all experts at once"] if len(bounds) else []),
        *(f"Rings: may go, each alone, at a loss below {limit:g} (dotted)" for limit in limits),
        *notes,
    ]
    return {"experts": panels.finish(figure, rows[rows["layer"].isin(layers)], title=title, notes=notes)}


def _distances(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure: a row per layer, a heat map per checkpoint, each over its distance of permuted patches."""
    table = table.dropna(subset=["expert"])  # no means over all pairs
    rows = table[table["metric"] == EXPERT_DISTANCE.name]
    if rows.empty:
        return {}
    keys = ["checkpoint", "layer", "expert", "expert_b"]
    permuted = table[table["metric"] == EXPERT_DISTANCE_PERMUTED.name].set_index(keys)["value"]
    relative = rows["value"] / permuted.loc[pd.MultiIndex.from_frame(rows[keys])].to_numpy()
    rows = rows.assign(value=relative)
    layers, notes = panels.shown_layers(panels.layers(rows))
    checkpoints = panels.checkpoints(rows)
    scale = Normalize(0, max(1.0, float(rows["value"].max())))
    size = (3.4 * len(checkpoints) + 1.2, 3.2 * len(layers) + 0.7)
    figure, axes = panels.pictures(len(layers), len(checkpoints), size)
    for down, layer in enumerate(layers):
        for across, checkpoint in enumerate(checkpoints):
            panel = axes[down, across]
            of_one = panels.select(rows, checkpoint=checkpoint, layer=layer)
            if of_one.empty:
                panel.set_axis_off()  # this checkpoint has no such layer
                continue
            matrix = _symmetric(of_one)
            heat_maps.draw(panel, matrix, scale)
            panel.set_title(f"{checkpoint}, {layer}", fontsize=9)
            panel.set(xlabel="expert", ylabel="expert" if across == 0 else "")
            if len(matrix) <= _MOST_NUMBERED:
                panel.set_xticks(range(len(matrix)))
                panel.set_yticks(range(len(matrix)))
                heat_maps.write_numbers(panel, matrix, scale, size=7.5, written="{:.2f}".format)
    heat_maps.color_bar(figure, axes, scale, "distance, over permuted patches", largest=0.7)
    title = "Distance of the outputs of two experts on the same patches"
    notes = ["0: the same outputs; 1: the distance on different patches", *notes]
    rows_of_panels = rows[rows["layer"].isin(layers)]
    return {"expert-distances": panels.finish(figure, rows_of_panels, title=title, notes=notes, mark=None)}


def _symmetric(rows: pd.DataFrame) -> np.ndarray:
    """Return the matrix of all pairs, 0 on the diagonal."""
    count = int(rows["expert_b"].max()) + 1
    matrix = np.zeros((count, count))
    i, j = (rows[column].to_numpy(int) for column in ("expert", "expert_b"))
    matrix[i, j] = matrix[j, i] = rows["value"]
    return matrix
