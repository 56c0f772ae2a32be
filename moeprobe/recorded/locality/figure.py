"""The figure of ``trace locality``: reuse by the next token over the layers, and distinct experts over tokens."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, INDEPENDENT
from moeprobe.metrics.analyses.next_token import NEXT_TOKEN_REUSE
from moeprobe.metrics.declaration import CHANCE
from moeprobe.recorded.locality.sentences import STRICT, rows_of, with_intervals
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result

# The lines of a recording: metric, null, label, and form of the line.
_REUSE = (
    (NEXT_TOKEN_REUSE.name, "", "next token", "o-"),
    (f"{NEXT_TOKEN_REUSE.name}{CHANCE}", STRICT, "other tokens of the sequence", "^:"),
    (f"{NEXT_TOKEN_REUSE.name}{CHANCE}", "pooled", "other sequences", "s--"),
)
_DISTINCT = (
    (DISTINCT_EXPERTS.name, "consecutive tokens", "o-"),
    (INDEPENDENT.name, "independent tokens", "s--"),
)


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a panel of reuse by layer, and panels of distinct experts in the first and the last layer."""
    table = result.table
    reuse = rows_of(table, NEXT_TOKEN_REUSE.name)
    distinct = with_intervals(rows_of(table, DISTINCT_EXPERTS.name))
    if reuse.empty:
        return {}
    every = panels.layers(reuse)
    layers, notes = panels.shown_layers(every, limit=2)
    figure, axes = panels.panels(1, 1 + len(layers), width=4.4, sharey=False)
    _draw_reuse(axes[0, 0], result, every)
    for panel, layer in zip(axes[0, 1:], layers, strict=True):
        _draw_distinct(panel, result, layer)
    axes[0, 1].set_ylabel("distinct experts")
    rows_of_panels = pd.concat([reuse, distinct])
    return {
        "locality": panels.finish(
            figure, rows_of_panels, title="Reuse of experts along sequences", notes=notes
        )
    }


def _draw_reuse(axes: Axes, result: Result, layers: list[str]) -> None:
    """Draw the reuse of each recording over the layers, with its chance levels."""
    names = panels.checkpoints(result.table)
    for name, shift in panels.name_shifts(names):
        of_recording = result.table[result.table["checkpoint"] == name]
        for metric, null, label, style in _REUSE:
            rows = rows_of(of_recording, metric, null)
            own_label = label if len(names) == 1 else f"{name}, {label}"
            color = result.sidecar.colors[name]
            panels.draw_over_layers(
                axes, rows, layers, color=color, label=own_label, shift=shift, style=style
            )
    panels.label_layers(axes, layers)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share of experts used again")


def _draw_distinct(axes: Axes, result: Result, layer: str) -> None:
    """Draw the distinct experts of each recording in a layer over the number of tokens that enough requests have."""
    names = panels.checkpoints(result.table)
    for name in names:
        of_layer = panels.select(result.table, checkpoint=name, layer=layer)
        for metric, label, style in _DISTINCT:
            rows = with_intervals(rows_of(of_layer, metric))
            own_label = label if len(names) == 1 else f"{name}, {label}"
            color = result.sidecar.colors[name]
            panels.points(
                axes,
                rows["severity"].to_numpy(float),
                rows,
                color=color,
                label=own_label,
                fmt=style,
                size=3.5,
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_title(layer)
    axes.set_xlabel("consecutive tokens")
