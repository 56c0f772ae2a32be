"""Curves of an attack beside random changes of its norm, and how far it transfers between checkpoints."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.output import ACCURACY, PREDICTION_AGREEMENT
from moeprobe.metrics.registry import find
from moeprobe.probes.sweep.figure import draw as draw_sweep
from moeprobe.results.figures import heat_maps, panels
from moeprobe.results.tables import agreement_of, first_and_last

# A matrix of more checkpoints has no numbers in its cells.
_MOST_NUMBERED = 10


def draw(
    table: pd.DataFrame, *, colors: Mapping[str, str], unit: str, gates: str | None, view: str, beside: str
) -> dict[str, Figure]:
    """Return routing and output along epsilon, and the matrix of transferred attacks where there are some.

    ``view`` names the perturbed images in the table, and ``beside`` those that are changed at random.
    """
    attacked = panels.select(table, view=view)
    random = None if beside == view else panels.select(table, view=beside)
    figures = draw_sweep(attacked, colors=colors, unit=unit, gates=gates, beside=random)
    if table["view"].str.startswith(_crafted_on(view)).any():
        figures["transfer"] = _transfer(table, view, unit)
    return figures


def _crafted_on(view: str, name: str = "") -> str:
    return f"{view}_from_{name}"


def _transfer(table: pd.DataFrame, view: str, unit: str) -> Figure:
    """Draw, at the largest epsilon, accuracy and agreement of the checkpoint of each column.

    The images were crafted on the checkpoint of the row.
    """
    strongest = table["severity"].max()
    table = table[(table["severity"] == strongest) & (table["null"].fillna("") == "")]
    output = ACCURACY if (table["metric"] == ACCURACY.name).any() else PREDICTION_AGREEMENT
    agreement = agreement_of(table)
    layers = first_and_last(panels.layers(panels.select(table, metric=agreement)))
    maps = {output.label: panels.select(table, metric=output.name)}
    label = find(agreement).full_label()
    maps |= {
        f"{label}\n{layer}": panels.ordinary(panels.select(table, metric=agreement, layer=layer))
        for layer in layers
    }
    names, scale = panels.checkpoints(table), Normalize(0, 1)
    side = 1.6 + 0.5 * len(names)
    figure, axes = panels.pictures(1, len(maps), (side * len(maps) + 1.6, side + 1.8))
    for column, (title, rows) in enumerate(maps.items()):
        _matrix(axes[0, column], rows, names, view, scale, with_labels=column == 0)
        axes[0, column].set_title(title)
    heat_maps.color_bar(figure, axes, scale, "share", largest=0.7)
    return panels.finish(
        figure,
        pd.concat(maps.values()),
        title=f"Attacks crafted on one checkpoint, judged on another: {view}, {unit} = {strongest:g}",
        notes=["Rows: crafted on. Columns: judged on. Intervals: in the table"],
        mark=None,
    )


def _matrix(
    axes: Axes, rows: pd.DataFrame, names: list[str], view: str, scale: Normalize, *, with_labels: bool
) -> None:
    """Draw one matrix, with a row for each checkpoint that images were crafted on."""
    values = np.full((len(names), len(names)), np.nan)
    by_place = rows.set_index(["view", "checkpoint"])["value"]
    for i, crafted_on in enumerate(names):
        for j, judged_on in enumerate(names):
            key = (view if i == j else _crafted_on(view, crafted_on), judged_on)
            values[i, j] = by_place.get(key, np.nan)
    heat_maps.draw(axes, values, scale)
    if len(names) <= _MOST_NUMBERED:
        heat_maps.write_numbers(axes, values, scale, size=9, written=lambda value: f"{value:.2f}")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names if with_labels else [""] * len(names))
