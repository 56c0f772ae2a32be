"""The figure of ``regret``: how the router's choice compares with others, over the layers, beside random choices."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.choices import CORRELATION, RANK, REGRET, REGRET_RANDOM, RIGHT
from moeprobe.metrics.declaration import CHANCE, Metric
from moeprobe.probes.regret.sentences import rows_of
from moeprobe.results.figures import panels

# Panels: metric, label of the axis, and where the chance level stands: a metric, a suffix, or a fixed value.
_PANELS: tuple[tuple[Metric, str, tuple[Metric, str] | float], ...] = (
    (RANK, "share of other choices that are worse", (RANK, CHANCE)),
    (RIGHT, "tokens without a better choice", (RIGHT, CHANCE)),
    (REGRET, "regret (nats)", (REGRET_RANDOM, "")),
    (CORRELATION, "rank correlation of gates and quality", 0.0),
)
# Lines of ordinary tokens, and of prefix tokens.
_STYLES = ("o-", "s--")


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a panel for each number, over the layers; dotted what a random choice shows."""
    rows = table[table["metric"].isin([metric.name for metric, *_ in _PANELS]) & table["value"].notna()]
    layers = panels.layers(table)
    if rows.empty or not layers:
        return {}
    kinds = list(dict.fromkeys(rows["tokens"]))
    figure, axes = panels.panels(1, len(_PANELS), width=3.4, sharey=False)
    names = panels.checkpoints(rows)
    lines = [(name, tokens) for name in names for tokens in kinds]
    for axis, (metric, label, chance) in zip(axes[0], _PANELS, strict=True):
        for (name, tokens), shift in zip(lines, panels.shifts(len(lines)), strict=True):
            of_line = table[(table["checkpoint"] == name) & (table["tokens"] == tokens)]
            label_of_line = name if len(kinds) == 1 else f"{name}, {tokens}"
            style = _STYLES[tokens not in ORDINARY]
            color = colors[name]
            panels.draw_over_layers(
                axis,
                rows_of(of_line, metric),
                layers,
                color=color,
                label=label_of_line,
                shift=shift,
                style=style,
            )
            _draw_chance(axis, of_line, chance, layers, color=color, shift=shift)
        panels.label_layers(axis, layers)
        axis.set_ylabel(label)
    notes = ["Dotted, without bars: a random choice"]
    title = "The router's choice beside others in its place"
    return {"regret": panels.finish(figure, rows, title=title, notes=notes)}


def _draw_chance(
    axis: Axes,
    table: pd.DataFrame,
    chance: tuple[Metric, str] | float,
    layers: list[str],
    *,
    color: str,
    shift: float,
) -> None:
    """Draw what a random choice shows."""
    if isinstance(chance, float):
        axis.axhline(chance, color="0.5", linestyle=":", linewidth=1)
        return
    levels = rows_of(table, *chance).drop_duplicates("layer").set_index("layer")["value"].reindex(layers)
    x = [number + shift for number in range(len(layers))]
    axis.plot(x, levels.to_numpy(float), "x:", color=color, markersize=4, linewidth=1)
