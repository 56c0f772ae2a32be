"""Accuracy and κ along the severity: a panel per family of corruptions, and one for the mean over all."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.declarations import CLEAN
from moeprobe.inputs.corruptions import EXTRA, FAMILIES, MEAN
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.results.figures import panels
from moeprobe.results.layouts.by_view import agreement_rows

# Layers that have a row of panels; of more the first and the last.
_MOST_LAYERS = 2


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: thin lines are single corruptions, thick ones with bands their means."""
    accuracy = table[table["metric"].eq(ACCURACY.name) & table["severity"].notna()]
    kappas = agreement_rows(table, severity=True)
    panel_layers, note = panels.shown_layers(panels.layers(kappas), limit=_MOST_LAYERS)
    rows = [("accuracy", accuracy)] if len(accuracy) else []
    rows += [(f"κ, {layer}", panels.select(kappas, layer=layer)) for layer in panel_layers]
    columns = [name for name in (*FAMILIES, MEAN) if (kappas["view"] == name).any()]
    if not rows or not columns:
        return {}
    figure, axes = panels.panels(len(rows), len(columns), width=2.7, height=2.3)
    for down, (label, of_row) in enumerate(rows):
        for across, name in enumerate(columns):
            panel = axes[down, across]
            _curves(panel, of_row, name, colors)
            panel.set_xticks(sorted(set(of_row["severity"])))
            if down == 0:
                panel.set_title(name)
            if down == len(rows) - 1:
                panel.set_xlabel("severity")
        axes[down, 0].set_ylabel(label)
        axes[down, 0].set_ylim(top=1.02)
    notes = ["Thin lines and ticks: single corruptions, the extra ones dotted", "0: the clean image", *note]
    all_rows = pd.concat([of_row for _, of_row in rows])
    is_single = all_rows.loc[all_rows["view"] == MEAN, "severity"].nunique() == 1
    mark = ("bars" if accuracy.empty else "bands and bars") if is_single else "bands"
    title = "Accuracy and routing under the corruptions of ImageNet-C"
    return {"corruptions": panels.finish(figure, all_rows, title=title, notes=notes, mark=mark)}


def _curves(axes: Axes, rows: pd.DataFrame, name: str, colors: Mapping[str, str]) -> None:
    """Draw a family, or the mean over all corruptions; of a single severity points, which have no line or band."""
    checkpoints = panels.checkpoints(rows)
    for checkpoint, shift in panels.name_shifts(checkpoints):
        of_checkpoint, color = panels.select(rows, checkpoint=checkpoint), colors[checkpoint]
        mean = of_checkpoint[of_checkpoint["view"].isin([name, CLEAN])].sort_values("severity")
        is_single = len(mean) == 1
        for kinds, style in ((FAMILIES.get(name, ()), "-"), (EXTRA.get(name, ()), ":")):
            for kind in kinds:
                line = of_checkpoint[of_checkpoint["view"] == kind].sort_values("severity")
                x = line["severity"] + shift * is_single
                marker = "_" if len(line) == 1 else None
                axes.plot(x, line["value"], style, color=color, linewidth=0.7, alpha=0.6, marker=marker)
        if is_single:
            x = mean["severity"].to_numpy(float) + shift
            panels.points(axes, x, mean, color=color, label=checkpoint, size=3.5)
            axes.set_xlim(x[0] - shift - 0.5, x[0] - shift + 0.5)
            continue
        axes.plot(mean["severity"], mean["value"], "o-", color=color, markersize=3.5, label=checkpoint)
        axes.fill_between(
            mean["severity"], mean["ci_low"], mean["ci_high"], color=color, alpha=0.2, linewidth=0
        )
