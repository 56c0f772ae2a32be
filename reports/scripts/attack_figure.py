"""The figure of attacks by what is attacked: answers, sets of experts, and patches of the busiest expert."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from moeprobe.results.figures import STYLE, panels
from moeprobe.results.palette import COLORS
from reports.scripts import attack_tables
from reports.scripts.objectives import MODELS

_LAYER = "blocks.1"
# Title, metric and layer of each panel.
_PANELS = (
    ("accuracy", "accuracy", ""),
    ("accuracy, clean routing replayed", "accuracy_perturbed_clean", ""),
    (f"sets of two that stay, {_LAYER}", "top2_set_match", _LAYER),
    (f"share of the busiest expert, {_LAYER}", "busiest_expert", _LAYER),
)


def draw(folder: Path) -> Figure:
    """Return a panel per number: a row per attack at the largest epsilon, a point with its interval per model."""
    table = attack_tables.read(folder)
    table = table[(table["train_seed"] == table["train_seed"].min()) & (table["reference"] == "")]
    views = attack_tables.OBJECTIVES
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 0.9 + 0.36 * len(views)), layout="constrained")
        axes = figure.subplots(1, len(_PANELS), sharey=True)
    for axis, (title, metric, layer) in zip(axes, _PANELS, strict=True):
        for shift, (name, label), color in zip((-0.14, 0.14), MODELS.items(), COLORS, strict=False):
            for place, view in enumerate(views):
                rows = attack_tables.at_strongest(table, metric, layer, view=view)
                rows = rows[rows["checkpoint"].str.contains(f"-{name}-")]
                y = [place + shift] * len(rows)
                axis.hlines(y, rows["ci_low"], rows["ci_high"], color=color, linewidth=1.5)
                axis.plot(rows["value"], y, "o", color=color, markersize=5, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xlim(-0.02, 1.02)
    axes[0].set_yticks(range(len(views)), views.values())
    axes[0].invert_yaxis()
    return panels.add_caption(figure, "ε = 8/255, ℓ∞. First seed. Bars: 95 % intervals over images.")
