"""The figure of ``coverage``: the share of experts with enough tokens, over the tokens of a recording."""

from matplotlib.figure import Figure

from moeprobe.metrics.analyses.expert_coverage import COVERED, COVERED_EVEN
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a curve for each recording with a band over random orders, beside an even router."""
    rows = result.table[result.table["metric"] == COVERED.name]
    figure, axes = panels.panels(1, 1, width=6.0)
    panel = axes[0, 0]
    for name in panels.checkpoints(rows):
        color = result.sidecar.colors[name]
        for metric, label, style in ((COVERED, name, "-"), (COVERED_EVEN, f"{name}, even router", ":")):
            line = panels.select(result.table, checkpoint=name, metric=metric.name).sort_values("severity")
            tokens = line["severity"].to_numpy(float)
            panel.plot(tokens, line["value"], style, color=color, label=label)
            if line["ci_low"].notna().all():
                low, high = line["ci_low"].to_numpy(float), line["ci_high"].to_numpy(float)
                panel.fill_between(tokens, low, high, color=color, alpha=0.2)
    panel.set_xscale("log")
    # Fewer tokens than an expert should have reach none.
    panel.set_xlim(left=result.sidecar.request["need"])
    panel.set_ylim(0, 1.02)
    panel.set_xlabel("tokens")
    panel.set_ylabel("share of experts with enough tokens")
    notes = ["Bands hold 95 % of random orders"]
    figure_of = panels.finish(figure, rows, title="Coverage of experts by data", notes=notes, mark=None)
    return {"coverage": figure_of}
