"""Match of two random views: raw beside its chance level, and beyond chance (kappa)."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.figures import _parts
from moeprobe.medium import medium_of
from moeprobe.wording import AGREEMENTS

# What the raw values are where they are not shares of patches alone.
_RAW = {"set_jaccard": "share of {tokens}, of experts", "weight_cosine": "match, cosine"}


def draw(table: pd.DataFrame, *, colours: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a column per MoE layer, raw match above, kappa below; none where nothing is matched.

    Top-k matches are drawn where tokens choose, and beside them the agreement that all checkpoints share. Colours are
    of checkpoints.
    """
    patches = _parts.ordinary(table)
    first = _parts.agreement(patches)
    names = [
        name
        for name in dict.fromkeys(patches["metric"])
        if name == first or re.fullmatch(r"top.*_match", name)
    ]
    patches = patches[patches["metric"].str.removesuffix("_chance").str.removesuffix("_kappa").isin(names)]
    if patches.empty:
        return {}
    layers, checkpoints = _parts.layers(patches), _parts.checkpoints(patches)
    medium = medium_of(patches["tokens"])
    raw_label = _RAW.get(first, "share of {tokens}").format(tokens=medium.tokens)
    figure, axes = _parts.panels(2, len(layers))
    for column, layer in enumerate(layers):
        raw, kappa = axes[:, column]
        for number, checkpoint in enumerate(checkpoints):
            here = _parts.select(patches, layer=layer, checkpoint=checkpoint)
            if here.empty:
                continue  # this checkpoint has no such layer
            x = np.arange(len(names)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            style = {"colour": colours[checkpoint], "label": checkpoint}
            _parts.points(raw, x, _parts.by_metric(here[here["null"] == ""], names), **style)
            pooled = here[here["null"] == "pooled"]
            chance = _parts.by_metric(pooled, [f"{name}_chance" for name in names])["value"].to_numpy(float)
            raw.plot(x, chance, "_", color=colours[checkpoint], markersize=14)
            for null, shift, mark in (("pooled", 0.0, "o"), ("image", 0.08, "D")):
                beyond = _parts.by_metric(here[here["null"] == null], [f"{name}_kappa" for name in names])
                _parts.points(kappa, x + shift, beyond, fmt=mark, **style)
                if null == "pooled":
                    _parts.name_collapsed(kappa, x, beyond, colour=colours[checkpoint])
        # One entry for the kind of mark: its colour says whose it is.
        raw.plot([], [], "_", color="#606060", markersize=14, label="by chance (pooled)")
        kappa.plot(
            [],
            [],
            "D",
            color="#606060",
            markersize=5,
            label=f"κ within the {medium.name}",
        )
        raw.set(title=layer, ylim=(0, 1.03), ylabel=raw_label if column == 0 else "")
        kappa.set(ylabel="κ (beyond chance)" if column == 0 else "")
        kappa.axhline(0, color="#808080", linewidth=0.8)
        for row in (raw, kappa):
            row.set_xticks(np.arange(len(names)), [_label(name) for name in names])
            row.set_xlim(-0.6, len(names) - 0.4)
    view = patches["view"].iloc[0]
    what = "Same routing of" if first in ("slot_match", "weight_cosine") else "Same experts for"
    title = f"{what} corresponding {medium.tokens}: {view}{_parts.undrawn(table)}"
    return {"match-ratio": _parts.finish(figure, patches, title=title)}


def _label(metric: str) -> str:
    if metric in AGREEMENTS:
        return AGREEMENTS[metric].replace(" ", "\n")
    base = metric.removesuffix("_match")
    return base.replace("_set", "\nany order").replace("top", "top-")
