"""Survival of sets along the noise, and flips that margins predict against flips that are observed."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.flip_prediction import BINS, HIGHEST, OBSERVED, PREDICTED, bin_name
from moeprobe.metrics.analyses.set_survival import SURVIVAL, SURVIVAL_BAND
from moeprobe.results.figures import panels

# Layers that have a column; of more the first and the last.
_MOST_LAYERS = 3
# Levels of noise in a panel of the reliability, evenly taken among all: the weakest in the darkest color.
_MOST_LEVELS = 3
_SHADES = (1.0, 0.6, 0.3)


def draw(table: pd.DataFrame, *, colors: Mapping[str, str], unit: str) -> dict[str, Figure]:
    """Return the figure: a column per layer, survival above, reliability of each checkpoint below."""
    curves = table[table["tokens"].isin(ORDINARY) & (table["metric"] == SURVIVAL.name)]
    if curves.empty:
        return {}
    columns, note = panels.shown_layers(panels.layers(curves), limit=_MOST_LAYERS)
    checkpoints = panels.checkpoints(curves)
    figure, axes = panels.panels(1 + len(checkpoints), len(columns), width=4.2, height=2.9)
    for column, layer in enumerate(columns):
        for checkpoint in checkpoints:
            of_one = panels.select(table, layer=layer, checkpoint=checkpoint)
            _survival(axes[0, column], of_one, color=colors[checkpoint], label=checkpoint)
        axes[0, column].set_title(layer)
        axes[0, column].set_xlabel(unit)
        axes[0, column].set_ylim(0, 1)
        for row, checkpoint in enumerate(checkpoints, start=1):
            of_one = panels.select(table, layer=layer, checkpoint=checkpoint)
            _reliability(axes[row, column], of_one, color=colors[checkpoint])
            axes[row, column].set_xlabel("predicted probability of a flip")
    axes[0, 0].set_ylabel("sets not changed yet")
    for row, checkpoint in enumerate(checkpoints, start=1):
        axes[row, 0].set_ylabel(f"{checkpoint}\nobserved flips")
    notes = ["Bands hold at all σ at once", "Dashed: prediction and observation agree", *note]
    title = "Sets of patches along nested noise, and flips predicted by margins"
    return {"margins": panels.finish(figure, curves[curves["layer"].isin(columns)], title=title, notes=notes)}


def _survival(axes: Axes, table: pd.DataFrame, *, color: str, label: str) -> None:
    """Draw the survival curve of a checkpoint, with its band."""
    of_tokens = table[table["tokens"].isin(ORDINARY)]
    curve, band = (
        of_tokens[of_tokens["metric"] == metric.name].sort_values("severity")
        for metric in (SURVIVAL, SURVIVAL_BAND)
    )
    panels.points(axes, curve["severity"].to_numpy(float), curve, color=color, label=label, size=3)
    start = pd.DataFrame({"severity": [0.0], "value": [1.0], "ci_low": [1.0], "ci_high": [1.0]})
    curve, band = (pd.concat([start, rows[start.columns]]).astype(float) for rows in (curve, band))
    axes.plot(curve["severity"], curve["value"], color=color, linewidth=1)
    axes.fill_between(band["severity"], band["ci_low"], band["ci_high"], color=color, alpha=0.15, linewidth=0)


def _reliability(axes: Axes, table: pd.DataFrame, *, color: str) -> None:
    """Draw observed over predicted shares of the bins of the prediction, at some levels of the noise."""
    bins = table[table["tokens"].isin([bin_name(number) for number in range(BINS)])]
    levels = sorted(bins["severity"].dropna().unique())
    numbers = np.unique(np.linspace(0, len(levels) - 1, min(_MOST_LEVELS, len(levels))).round().astype(int))
    for shade, number in zip(_SHADES, numbers, strict=False):
        of_level = bins[bins["severity"] == levels[number]]
        predicted, observed = (
            of_level[of_level["metric"] == metric.name].set_index("tokens")
            for metric in (PREDICTED, OBSERVED)
        )
        observed = observed.loc[predicted.index]
        panels.points(axes, predicted["value"].to_numpy(float), observed, color=color, label="", size=3)
        lines = axes.containers[-1]
        for artist in (lines[0], *lines[1], *lines[2]):
            artist.set_alpha(shade)
        axes.plot(
            predicted["value"], observed["value"], color=color, alpha=shade, linewidth=1,
        )  # fmt: skip
        end = predicted["value"].iloc[-1], observed["value"].iloc[-1]
        # The weakest noise below its point, so that names of curves that end together stand apart.
        side = "top" if number == numbers[0] else "bottom"
        axes.annotate(f"σ = {levels[number]:g}", end, (5, 0), textcoords="offset points", fontsize=8, va=side)
    axes.plot([0, HIGHEST], [0, HIGHEST], color="gray", linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.2 * HIGHEST)
    axes.set_ylim(0, 1)
