"""Recorded routing: a column per trace, or along the severity of one view, and where routings of sequences differ."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.disagreement import CHOICE_DIFFERS
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.token_kinds import POSITION
from moeprobe.probes.confidence.figure import draw as draw_confidence
from moeprobe.probes.match_ratio.figure import draw as draw_match_ratio
from moeprobe.probes.sweep.figure import draw as draw_sweep
from moeprobe.recorded.engine.layout import along_a_severity, label_traces, steps_alone
from moeprobe.results.figures import heat_maps, panels
from moeprobe.results.folder import Result


def figures_of(result: Result) -> dict[str, Figure]:
    """Return the figures of recorded routing by name."""
    if along_a_severity(result):
        unit = result.sidecar.severity_unit or "severity"
        return draw_sweep(steps_alone(result).table, colors=result.sidecar.colors, unit=unit)
    side_by_side = label_traces(result)
    palette = side_by_side.sidecar.colors
    views = result.sidecar.request.view_name
    figures = draw_match_ratio(side_by_side.table.assign(view=views), colors=palette)
    figures |= draw_disagreement(side_by_side.table, colors=palette)
    return figures | draw_confidence(side_by_side.table, colors=palette, title="Router confidence, recorded")


# Layers that have a line of the map of full height.
_MOST_TALL = 12


def draw_disagreement(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a column per trace that is compared with the first; none without sequences."""
    placed = table[table["tokens"].str.startswith(POSITION) & (table["trials"] > 0)]
    cells = placed[placed["metric"] == CHOICE_DIFFERS.name]
    if cells.empty:
        return {}
    names, layers = panels.checkpoints(cells), panels.layers(cells)
    positions = list(dict.fromkeys(cells["tokens"]))
    labels = [position.removeprefix(POSITION).strip() for position in positions]
    tall = max(2.4, 0.22 * min(len(layers), _MOST_TALL) + 0.06 * max(len(layers) - _MOST_TALL, 0) + 1.2)
    figure, axes = heat_maps.grid(2, len(names), width=max(4.5, 0.42 * len(positions) + 1.5), height=tall)
    scale = Normalize(0, float(cells["value"].max()) or 1.0)  # where nothing differs, of all that could
    for column, name in enumerate(names):
        checkpoint_cells = cells[cells["checkpoint"] == name]
        values = checkpoint_cells.pivot_table(index="layer", columns="tokens", values="value").reindex(
            index=layers, columns=positions
        )
        heat_maps.draw_named(axes[0, column], values.to_numpy(float), scale, rows=layers, columns=labels)
        axes[0, column].set_title(name)
        mean = placed[(placed["metric"] == PAIRS_DIFFER.name) & (placed["checkpoint"] == name)]
        line = axes[1, column]
        panels.points(
            line,
            np.arange(len(positions)),
            mean.set_index("tokens").reindex(positions),
            color=colors[name],
            label="pairs of token and layer that differ",
            fmt="o-",
        )
        line.set_xticks(range(len(positions)), labels)
        line.set_xlim(-0.5, len(positions) - 0.5)
        line.set_ylim(bottom=0)
        line.set_xlabel("position in the sequence, from 0")
    axes[0, 0].set_ylabel("MoE layer")
    axes[1, 0].set_ylabel("share that differs")
    heat_maps.color_bar(figure, axes[0], scale, "share that differs")
    shares = panels.ordinary(table[table["metric"] == PAIRS_DIFFER.name])
    title = "Where the routing of the same sequences differs"
    notes = ["Above: tokens whose set of experts differs"]
    return {"disagreement": panels.finish(figure, shares, title=title, notes=notes)}
