"""Draw what little room does on Fashion-MNIST, from the committed tables.

    python -m reports.scripts.fashion_figures

Writes ``reports/fashion/seed0/capacity.png``: accuracy change against unlimited capacity, over the capacity.
"""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.results.figures import save
from moeprobe.results.figures.panels import Named, write_beside
from moeprobe.results.palette import COLORS
from reports.scripts.fashion_tables import FIRST, limited
from reports.scripts.regenerate_fashion import PRIORITIES, REPORT

_HEIGHT = 3.4


def main() -> None:
    """Draw, and write."""
    save(capacity(REPORT), REPORT / f"seed{FIRST}" / "capacity")


def capacity(folder: Path) -> Figure:
    """Return a panel per model: the change of accuracy by capacity, a line for each way to choose who comes first."""
    rows = limited(folder)
    models = list(dict.fromkeys(rows["model"]))
    figure = Figure(figsize=(5.4 * len(models), _HEIGHT + 0.6), layout="constrained")
    for ax, model in zip(figure.subplots(1, len(models), sharey=True), models, strict=True):
        ends = [
            _line(ax, rows[(rows["model"] == model) & (rows["priority"] == priority)], said, color)
            for (priority, said), color in zip(PRIORITIES.items(), COLORS, strict=False)
        ]
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(title=model, xlabel="capacity: room, as a multiple of an expert's even share")
        ax.grid(alpha=0.3)
        write_beside(ax, ends, height=_HEIGHT - 0.6)
    figure.axes[0].set_ylabel("accuracy change against unlimited capacity")
    figure.supxlabel("Bars: 95 % intervals over 4,000 test images, paired; one training seed.", fontsize=9)
    return figure


def _line(ax: Axes, rows: pd.DataFrame, said: str, color: str) -> Named:
    ends = [rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]]
    ax.errorbar(rows["capacity"], rows["value"], yerr=ends, color=color, marker="o", markersize=4, capsize=3)
    last = rows.iloc[-1]
    return Named(float(last["capacity"]), float(last["value"]), said, color)


if __name__ == "__main__":
    main()
