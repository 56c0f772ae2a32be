"""The figure of predicted experts: the recall over the layers."""

from matplotlib.figure import Figure

from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.layouts.prefetch import LINES
from moeprobe.results.palette import COLORS

_STYLES = {"": "o-", "busiest": "--", "even": ":"}
# What the columns of the table explain in a note.
_LABELS = {"layer": "from the layer before", "token": "from the previous token", "both": "from both"}


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a panel of each number of loaded experts, with a line for each predictor and level."""
    table = panels.ordinary(result.table)
    rows = table[table["metric"].str.startswith("prefetch_") & (table["layer"] != "")]
    if rows.empty:
        return {}
    layers, sizes = panels.layers(rows), sorted(set(rows["severity"]))
    names = panels.checkpoints(rows)
    figure, axes = panels.panels(1, len(sizes), width=4.2)
    for panel, size in zip(axes[0], sizes, strict=True):
        of_size = panels.select(rows, severity=size)
        # Several recordings have a color each, and the levels of the first alone.
        lines = [
            (name, index, line)
            for name in names
            for index, (metric, null, _) in enumerate(LINES)
            if (name == names[0] or not null)
            and not (line := panels.select(of_size, checkpoint=name, metric=metric, null=null)).empty
        ]
        # Beside each other, since their bars would cover one another.
        for (name, index, line), shift in zip(lines, panels.shifts(len(lines)), strict=True):
            _, null, label = LINES[index]
            label = _LABELS.get(label, label)
            panels.draw_over_layers(
                panel,
                line,
                layers,
                color=COLORS[index % len(COLORS)] if len(names) == 1 else result.sidecar.colors[name],
                label=label if len(names) == 1 else f"{name}, {label}",
                shift=shift,
                style=_STYLES[null],
            )
        panels.label_layers(panel, layers)
        panel.set_title(f"{int(size):,} experts loaded ahead")
        panel.set_ylim(0, 1.02)
    axes[0, 0].set_ylabel("share of choices found")
    return {"prefetch": panels.finish(figure, rows, title="Experts predicted ahead")}
