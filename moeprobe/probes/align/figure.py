"""Common tokens of the experts of two trainings, in the order of their alignment; and κ layer by layer."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import KAPPA
from moeprobe.results.figures import heat_maps, panels
from moeprobe.results.palette import colors as make_palette

# Pairs of trainings that have heat maps; layers with one each, of more the first and the last.
_MOST_PAIRS, _MOST_LAYERS = 3, 3
# With more pairs, points of a layer stand close.
_FEW_PAIRS = 20
# More experts than this, and numbers in the cells would be too small to read.
_MOST_NUMBERED = 10
# In inches, however many pairs there are.
_WIDEST = 11.0
_UNRELATED = "#999999"


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the heat maps of common tokens (of many pairs the first), and κ of every pair by layer."""
    entries = table[table["metric"] == alignment.JOINT_ROUTING.name]
    return {"align": _maps(entries), "align-kappa": _kappas(panels.ordinary(table), colors)}


def _maps(entries: pd.DataFrame) -> Figure:
    layers, notes = panels.shown_layers(panels.layers(entries), limit=_MOST_LAYERS)
    pairs = panels.checkpoints(entries)
    # The first pair of each set of trainings before any second one.
    groups = entries.drop_duplicates("checkpoint").set_index("checkpoint")["group"]
    ranks = groups.groupby(groups).cumcount()
    pairs_in_maps = list(ranks.sort_values(kind="stable").index[:_MOST_PAIRS])
    size = (3.6 * len(pairs_in_maps) + 1.2, 3.9 * len(layers) + 0.7)
    figure, axes = panels.pictures(len(layers), len(pairs_in_maps), size)
    scale = Normalize(0, 1)
    for row, layer in enumerate(layers):
        for column, pair in enumerate(pairs_in_maps):
            panel = axes[row, column]
            _map(panel, panels.select(entries, layer=layer, checkpoint=pair), scale)
            first, _, second = pair.partition(" with ")
            panel.set_title(layer)
            panel.set_ylabel(f"expert of {first}")
            panel.set_xlabel(f"expert of {second}")
    heat_maps.color_bar(figure, axes, scale, "share of the row's tokens", largest=0.7)
    notes = ["Columns in the order of the alignment on all inputs", *notes]
    if len(pairs_in_maps) < len(pairs):
        notes.append(f"In the table only: {len(pairs) - len(pairs_in_maps)} more pairs")
    return panels.finish(
        figure, entries, title="Tokens that two experts have in common", notes=notes, mark=None
    )


def _map(axes: Axes, rows: pd.DataFrame, scale: Normalize) -> None:
    """Draw one matrix; its rows by their share in the alignment, its columns as aligned."""
    values, tokens = (
        rows.pivot_table(index="expert", columns="expert_b", values=column, dropna=False).to_numpy(float)
        for column in ("value", "trials")
    )
    # Common tokens, as in the fit: of shares another assignment can be the best.
    first, second = linear_sum_assignment(values * tokens, maximize=True)
    order = np.argsort(-values[first, second], kind="stable")
    rows_in_order = [*first[order], *(row for row in range(values.shape[0]) if row not in first)]
    columns = [*second[order], *(column for column in range(values.shape[1]) if column not in second)]
    values = values[np.ix_(rows_in_order, columns)]
    heat_maps.draw(axes, values, scale)
    if max(values.shape) <= _MOST_NUMBERED:
        heat_maps.write_numbers(axes, values, scale, size=7, written=lambda value: f"{value:.2f}".lstrip("0"))
    for axis, names in ((axes.yaxis, rows_in_order), (axes.xaxis, columns)):
        step = -(-len(names) // _MOST_NUMBERED)
        axis.set_ticks(range(0, len(names), step), [str(name) for name in names[::step]])


def _kappas(table: pd.DataFrame, colors: Mapping[str, str]) -> Figure:
    """Draw κ of every pair, on inputs that the alignment was not fitted to, beside the best of unrelated inputs."""
    kappas = table[(table["metric"] == f"{EXPERT_OVERLAP.name}{KAPPA}") & (table["null"] == "pooled")]
    unrelated = table[table["metric"] == alignment.FITTED_UNRELATED.name]
    layers, pairs = panels.layers(kappas), panels.checkpoints(kappas)
    figure, axes = panels.panels(
        1, 1, width=min(max(4.6, 1.0 + 0.16 * len(layers) * len(pairs)), _WIDEST), height=3.2
    )
    panel = axes[0, 0]
    groups = kappas.drop_duplicates("checkpoint").set_index("checkpoint")["group"]
    # Pairs of several sets have the colors of these: what is compared are the sets.
    labels = groups if groups.nunique() > 1 else pd.Series(pairs, index=pairs)
    palette = colors if groups.nunique() == 1 else make_palette(list(dict.fromkeys(groups)))
    # The more pairs, the more of the room of a layer.
    offsets = panels.shifts(len(pairs)) * (1.6 if len(pairs) > _FEW_PAIRS else 1.0)
    for pair, shift in zip(pairs, offsets, strict=True):
        panels.draw_over_layers(
            panel, panels.select(kappas, checkpoint=pair), layers, color=palette[labels[pair]], label=labels[pair],
            shift=shift, style="o",
        )  # fmt: skip
    # After all pairs, for the order of the legend.
    for pair, shift in zip(pairs, offsets, strict=True):
        panels.draw_over_layers(
            panel, panels.select(unrelated, checkpoint=pair), layers, color=_UNRELATED,
            label="best alignment of unrelated inputs (range: 95 % of orders)", shift=shift, style="_",
        )  # fmt: skip
    panel.axhline(0, color=_UNRELATED, linewidth=0.8)
    panel.set_ylabel("κ (0 = chance)")
    panels.label_layers(panel, layers)
    return panels.finish(figure, kappas, title="Agreement of aligned experts on held-out inputs")
