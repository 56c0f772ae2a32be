"""Where forms differ, how near to a tie, and what that costs: three panels."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moeprobe.metrics.analyses import changed_margins, form_loss
from moeprobe.metrics.analyses.disagreement import CHOICE_DIFFERS
from moeprobe.results.figures import panels

# Parts of the price from top to bottom.
_PARTS = {
    form_loss.LOSS_GAP: "all of it",
    form_loss.GAP_ARITHMETIC: "with the first's routing",
    form_loss.GAP_CHOICES: "the first, with its routing",
    form_loss.GAP_ROUTING: "due to routing",
}


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure; nothing where no tokens choose.

    Args:
        table: of the run.
        colors: of the forms.
    """
    differs = panels.ordinary(table[table["metric"] == CHOICE_DIFFERS.name])
    if differs.empty:
        return {}
    prices = table[table["metric"].isin([metric.name for metric in _PARTS]) & (table["layer"] == "")]
    layers, names = panels.layers(differs), panels.checkpoints(differs)
    figure, axes = panels.panels(1, 2 if prices.empty else 3, width=3.9, height=3.0, sharey=False)
    for name, shift in panels.name_shifts(names):
        rows = panels.select(differs, checkpoint=name)
        label = f"{name} (against itself)" if name == names[0] else name
        panels.draw_over_layers(axes[0, 0], rows, layers, color=colors[name], label=label, shift=shift)
    axes[0, 0].set_title(f"{CHOICE_DIFFERS.label}")
    axes[0, 0].set_ylabel("share")
    axes[0, 0].set_ylim(bottom=0)
    panels.label_layers(axes[0, 0], layers)
    _margins(axes[0, 1], panels.ordinary(table), names[1:], layers, colors)
    if not prices.empty:
        _prices(axes[0, 2], prices, names, colors)
    title = f"Forms of one model, each against {names[0]}"
    return {"agree": panels.finish(figure, differs, title=title)}


def _margins(
    axes: Axes, table: pd.DataFrame, names: list[str], layers: list[str], colors: Mapping[str, str]
) -> None:
    """Draw the margins of the tokens that differ, and of the others, over the layers."""
    for name, shift in panels.name_shifts(names):
        for metric, style in ((changed_margins.MARGIN_CHANGED, "o-"), (changed_margins.MARGIN_KEPT, "s:")):
            rows = panels.select(table, checkpoint=name, metric=metric.name)
            panels.draw_over_layers(
                axes, rows, layers, color=colors[name], label="", shift=shift, style=style
            )
    axes.set_title("selection margin\nsolid: tokens that differ; dotted: others")
    axes.set_ylim(bottom=0)
    panels.label_layers(axes, layers)


def _prices(axes: Axes, table: pd.DataFrame, names: list[str], colors: Mapping[str, str]) -> None:
    """Draw the change of log-probability with its parts, a line each."""
    for name, shift in panels.name_shifts(names):
        rows = panels.by_metric(panels.select(table, checkpoint=name), [metric.name for metric in _PARTS])
        value, low, high = (rows[column].to_numpy(float) for column in ("value", "ci_low", "ci_high"))
        errors = np.stack([value - low, high - value])
        axes.errorbar(
            value, np.arange(len(_PARTS)) + shift, xerr=np.clip(np.nan_to_num(errors), 0, None), fmt="o",
            color=colors[name], markersize=5, capsize=3, linewidth=1.5,
        )  # fmt: skip
    axes.set_yticks(range(len(_PARTS)), list(_PARTS.values()))
    axes.set_ylim(len(_PARTS) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title("change of log-probability")
    axes.set_xlabel("nats")
