"""The figure of ``drift``: κ with the first and with the last trace along a training, layer by layer."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moeprobe.recorded.drift.sentences import FIRST, LAST, kappas, steps_of
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.palette import colors

_MOST_TICKS = 8


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a panel per layer (of many the first and the last)."""
    steps: Mapping[str, float] = result.sidecar["request"]["steps"]
    # Places are steps of the training where its files are numbered, and just the order elsewhere.
    numbered = steps_of(list(steps)) is not None
    rows = kappas(result.table)
    if rows["value"].isna().all():
        return {}
    layers, notes = panels.shown_layers(panels.layers(rows))
    figure, axes = panels.panels(1, len(layers))
    palette = colors([FIRST, LAST])
    for panel, layer in zip(axes[0], layers, strict=True):
        for against, form in ((FIRST, "o-"), (LAST, "s--")):
            of_reference = panels.select(rows, layer=layer, against=against)
            x = np.array([steps[name] for name in of_reference["name"]])
            panels.points(panel, x, of_reference, color=palette[against], label=f"with {against}", fmt=form)
            panels.name_collapsed(panel, x, of_reference, color=palette[against])
        panel.set_title(layer)
        panel.axhline(0, color="#999999", linewidth=0.8)
        if numbered:
            panel.set_xlabel("step")
            panel.xaxis.set_major_locator(MaxNLocator(_MOST_TICKS, integer=True))
        else:
            ticks = list(steps)[:: max(1, len(steps) // _MOST_TICKS)]
            panel.set_xticks([steps[name] for name in ticks], ticks, rotation=30, ha="right")
    # All panels share the axis, which begins at chance, or below where values do.
    lowest = min(0.0, float(rows[rows["layer"].isin(layers)][["value", "ci_low"]].min().min()))
    axes[0, 0].set_ylim(lowest - 0.02, 1.05)
    axes[0, 0].set_ylabel("κ (0 = chance)")
    rows_of_panels = rows[rows["layer"].isin(layers)]
    return {
        "drift": panels.finish(figure, rows_of_panels, title="Drift of routing over a training", notes=notes)
    }
