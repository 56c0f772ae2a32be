"""Match of two random views: raw next to its chance level, and beyond chance (kappa)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.set_match import SET_JACCARD
from moeprobe.metrics.analyses.slot_match import SLOT_MATCH
from moeprobe.metrics.analyses.weights import WEIGHT_COSINE
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import covers, find
from moeprobe.results.figures import panels
from moeprobe.results.tables import SHOWN_LAYERS, agreement_of

# What the raw values are where they are not shares of patches alone.
_RAW = {SET_JACCARD.name: "share of {tokens}, of experts", WEIGHT_COSINE.name: "match, cosine"}


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a column per MoE layer, raw match above, kappa below; none where nothing is matched.

    Of more than ``SHOWN_LAYERS`` layers, layers are the x axis and each match has a column. Top-k matches are
    drawn where tokens choose, and next to them the agreement that all checkpoints share. Colors are of checkpoints.
    """
    patches = panels.ordinary(table)
    first = agreement_of(patches)
    names = [
        name
        for name in dict.fromkeys(patches["metric"])
        if name == first or any(covers(match, name) for match in Match.measures)
    ]
    patches = patches[patches["metric"].map(lambda name: find(name).metric.name).isin(names)]
    if patches.empty:
        return {}
    layers = panels.layers(patches)
    modality = modality_of(patches["tokens"])
    raw_label = _RAW.get(first, "share of {tokens}").format(tokens=modality.tokens)
    draw_panels = _over_layers if len(layers) > SHOWN_LAYERS else _by_layer
    figure, axes = draw_panels(patches, layers, names, colors)
    axes[0, 0].set_ylabel(raw_label)
    axes[1, 0].set_ylabel("κ (beyond chance)")
    for kappa in axes[1]:
        kappa.axhline(0, color="#808080", linewidth=0.8)
    for raw in axes[0]:
        raw.set_ylim(0, 1.03)
    # One entry for the kind of mark: its color says whose it is.
    axes[0, 0].plot([], [], "_", color="#606060", markersize=14, label="by chance (pooled)")
    axes[1, 0].plot([], [], "D", color="#606060", markersize=5, label=f"κ within the {modality.name}")
    view = patches["view"].iloc[0]
    what = "Same routing of" if first in (SLOT_MATCH.name, WEIGHT_COSINE.name) else "Same experts for"
    title = f"{what} corresponding {modality.tokens}: {view}"
    match_rows = patches[patches["null"].isin(["", "pooled", "image"])]
    return {"match-ratio": panels.finish(figure, match_rows, title=title, notes=panels.note_undrawn(table))}


def _by_layer(
    patches: pd.DataFrame, layers: Sequence[str], names: Sequence[str], colors: Mapping[str, str]
) -> tuple[Figure, np.ndarray]:
    """Draw a panel per layer, with a place per match."""
    figure, axes = panels.panels(2, len(layers))
    checkpoints = panels.checkpoints(patches)
    for column, layer in enumerate(layers):
        raw, kappa = axes[:, column]
        raw.set_title(layer)
        for number, checkpoint in enumerate(checkpoints):
            values = panels.select(patches, layer=layer, checkpoint=checkpoint)
            if values.empty:
                continue  # this checkpoint has no such layer
            x = np.arange(len(names)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            color = colors[checkpoint]
            panels.points(
                raw, x, panels.by_metric(values[values["null"] == ""], names), color=color, label=checkpoint
            )
            pooled = values[values["null"] == "pooled"]
            chance = panels.by_metric(pooled, [f"{name}{CHANCE}" for name in names])["value"].to_numpy(float)
            raw.plot(x, chance, "_", color=color, markersize=14)
            for null, shift, mark in (("pooled", 0.0, "o"), ("image", 0.08, "D")):
                beyond = panels.by_metric(
                    values[values["null"] == null], [f"{name}{KAPPA}" for name in names]
                )
                panels.points(kappa, x + shift, beyond, fmt=mark, color=color, label=checkpoint)
                if null == "pooled":
                    panels.name_collapsed(kappa, x, beyond, color=color)
        for row in (raw, kappa):
            row.set_xticks(np.arange(len(names)), [_label(name) for name in names])
            row.set_xlim(-0.6, len(names) - 0.4)
    return figure, axes


def _over_layers(
    patches: pd.DataFrame, layers: Sequence[str], names: Sequence[str], colors: Mapping[str, str]
) -> tuple[Figure, np.ndarray]:
    """Draw a panel per match, with the layers along the x axis."""
    figure, axes = panels.panels(2, len(names), width=5.0)
    checkpoints = panels.checkpoints(patches)
    shift_of = dict(panels.name_shifts(checkpoints))
    for column, name in enumerate(names):
        raw, kappa = axes[:, column]
        raw.set_title(_label(name).replace("\n", " "))
        for checkpoint in checkpoints:
            values = panels.select(patches, checkpoint=checkpoint)
            color, shift = colors[checkpoint], shift_of[checkpoint]
            chance = panels.select(values, metric=f"{name}{CHANCE}", null="pooled").set_index("layer")[
                "value"
            ]
            raw.plot(
                np.arange(len(layers)) + shift, chance.reindex(list(layers)), "_", color=color, markersize=6
            )
            for panel, metric, null, style in (
                (raw, name, "", "o-"),
                (kappa, f"{name}{KAPPA}", "pooled", "o-"),
                (kappa, f"{name}{KAPPA}", "image", "D:"),
            ):
                rows = panels.select(values, metric=metric, null=null)
                panels.draw_over_layers(
                    panel, rows, layers, color=color, label=checkpoint, shift=shift, style=style
                )
        panels.label_layers(raw, layers, with_label=False)
        panels.label_layers(kappa, layers)
    return figure, axes


def _label(metric: str) -> str:
    return find(metric).metric.short.replace(" ", "\n", 1)
