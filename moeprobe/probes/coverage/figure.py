"""The figure of ``coverage``: the share of experts with enough tokens, over the tokens of the data."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from moeprobe.metrics.analyses.expert_coverage import COVERED, COVERED_EVEN
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.layouts.expert_coverage import by_source, modality_of_coverage
from moeprobe.results.palette import colors


class _Counts(LogFormatter):
    """Writes 2,000 where others write 2 × 10³."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.0f}" if super().__call__(x, pos) else ""


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a curve for each source with a band over random orders, beside an even router."""
    sources, modality = by_source(result.table), modality_of_coverage(result.table)
    rows = result.table[result.table["metric"] == COVERED.name]
    figure, axes = panels.panels(1, 1, width=6.0)
    panel = axes[0, 0]
    for name, color in colors(list(sources)).items():
        for metric, label, style in ((COVERED, name, "-"), (COVERED_EVEN, f"{name}, even router", ":")):
            line = panels.select(sources[name], metric=metric.name).sort_values("severity")
            tokens = line["severity"].to_numpy(float)
            panel.plot(tokens, line["value"], style, color=color, label=label)
            if line["ci_low"].notna().all():
                low, high = line["ci_low"].to_numpy(float), line["ci_high"].to_numpy(float)
                panel.fill_between(tokens, low, high, color=color, alpha=0.2)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(_Counts())
    panel.xaxis.set_minor_formatter(_Counts())
    # Fewer tokens than an expert should have reach none.
    panel.set_xlim(left=result.sidecar.request["need"])
    panel.set_ylim(0, 1.02)
    panel.set_xlabel(modality.tokens)
    panel.set_ylabel(f"share of experts with enough {modality.tokens}")
    notes = ["Bands hold 95 % of random orders"]
    figure_of = panels.finish(figure, rows, title="Coverage of experts by data", notes=notes, mark=None)
    return {"coverage": figure_of}
