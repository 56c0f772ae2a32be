"""The size of a flip by the decile of the token's margin, and what flips cost against what prices predict."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.flip_costs import COST, COST_CLEAN, PREDICTED, SLOPE, SLOPE_CLEAN
from moeprobe.metrics.analyses.flips import FORCED, flip_metric
from moeprobe.metrics.analyses.text_flips import text_flip_metric
from moeprobe.probes.flips.sentences import is_unreachable
from moeprobe.results.figures import panels

# What a flip of a text does that the figure shows.
_OF_TEXTS = "following_size"
# Layers that have panels; of more the first and the last.
_MOST_LAYERS = 3
_LABELS = dict(
    zip(
        FORCED,
        ("runner-up for the last", "runner-up for the first", "random set", "set under perturbation"),
        strict=True,
    )
)


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the sizes of flips, and what flips cost under held-out perturbations, if any were predicted."""
    return _sizes(table, colors) | _costs(table, colors)


def _sizes(table: pd.DataFrame, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a row per layer (of many the first and the last), a panel per kind of set.

    Layers whose patches cannot reach the answer have no panel but a sentence.
    """
    margins = table[table["tokens"].str.startswith("margin ")]
    layers = [
        name for name in panels.layers(margins) if not is_unreachable(panels.select(margins, layer=name))
    ]
    still = [name for name in panels.layers(margins) if name not in layers]
    panel_layers, note = panels.shown_layers(layers, limit=_MOST_LAYERS)
    is_of_texts = margins["metric"].eq(text_flip_metric(_OF_TEXTS, "runner_up").name).any()
    names = {
        forced: (text_flip_metric(_OF_TEXTS, forced) if is_of_texts else flip_metric("size", forced)).name
        for forced in FORCED
    }
    rows = margins[margins["metric"].isin(names.values()) & margins["layer"].isin(panel_layers)]
    rows = rows[rows["value"].notna()]
    kinds = [forced for forced, name in names.items() if (rows["metric"] == name).any()]
    if not kinds:
        return {}
    figure, axes = panels.panels(len(panel_layers), len(kinds), width=3.3, height=2.6, sharey=False)
    deciles = list(dict.fromkeys(margins["tokens"]))
    checkpoints = panels.checkpoints(rows)
    for row, layer in enumerate(panel_layers):
        for column, forced in enumerate(kinds):
            panel = axes[row, column]
            for checkpoint, shift in panels.name_shifts(checkpoints):
                line = panels.select(rows, checkpoint=checkpoint, layer=layer, metric=names[forced])
                line = line.set_index("tokens").reindex(deciles).reset_index()
                x = np.arange(1, len(deciles) + 1) + shift
                panels.points(panel, x, line, color=colors[checkpoint], label=checkpoint)
            panel.set_xticks(range(1, len(deciles) + 1))
            panel.set_ylim(bottom=0)
            if row == 0:
                panel.set_title(_LABELS[forced])
            if row == len(panel_layers) - 1:
                panel.set_xlabel("decile of the selection margin")
            if column == 0:
                panel.set_ylabel(
                    f"{layer}\n{'|Δ Σ log-probability|' if is_of_texts else '|Δ log-probability|'}"
                )
    notes = [f"Flips of patches in {' and '.join(still)} cannot reach the answer"] if still else []
    notes += note
    title = "How far one flip of a patch moves the answer"
    if is_of_texts:
        title = "How far one flip of a token moves all following ones"
    sampled = TEXT if is_of_texts else None
    return {"flips": panels.finish(figure, rows, title=title, notes=notes, sampled=sampled)}


def _costs(table: pd.DataFrame, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure of held-out perturbations, a point each; empty where none were predicted."""
    rows = table[table["metric"].isin([metric.name for metric in (PREDICTED, COST, COST_CLEAN)])]
    if rows.empty:
        return {}
    figure, axes = panels.panels(1, 2, width=4.4, height=3.4, sharey=False)
    for axis, cost, slope in zip(axes[0], (COST, COST_CLEAN), (SLOPE, SLOPE_CLEAN), strict=True):
        for checkpoint in panels.checkpoints(rows):
            of_checkpoint = panels.select(rows, checkpoint=checkpoint)
            x = panels.select(of_checkpoint, metric=PREDICTED.name)
            y = panels.select(of_checkpoint, metric=cost.name)
            predicted, color = x["value"].to_numpy(float), colors[checkpoint]
            panels.points(axis, predicted, y, color=color, label=checkpoint, size=4, width=1)
            axis.hlines(y["value"], x["ci_low"], x["ci_high"], color=color, linewidth=1)
            reach = np.array([0, predicted.max(initial=0)])
            for fitted in panels.select(table, checkpoint=checkpoint, metric=slope.name)["value"]:
                axis.plot(reach, fitted * reach, color=color, linestyle=":")
        axis.axline((0, 0), slope=1, color="0.5", linewidth=1, linestyle="--", label="as predicted")
        axis.set_title(cost.label)
        axis.set_xlabel("predicted: Σ price × flips")
    axes[0, 0].set_ylabel("nats per input")
    title = "What flips cost under held-out perturbations"
    notes = ["dotted: fitted line through 0"]
    return {"flip-costs": panels.finish(figure, rows, title=title, notes=notes)}
