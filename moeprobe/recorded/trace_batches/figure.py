"""The figure of ``trace batches``: distinct experts over the number of tokens, in the first and the last layer."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, EVEN, INDEPENDENT
from moeprobe.recorded.trace_batches.sentences import rows_of, with_intervals
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result

# The lines of a recording: metric, label, and form of the line.
_DISTINCT = (
    (DISTINCT_EXPERTS.name, "consecutive tokens", "o-"),
    (INDEPENDENT.name, "independent tokens", "s--"),
    (EVEN.name, "even router", ":"),
)


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: panels of distinct experts in the first and the last layer."""
    distinct = with_intervals(rows_of(result.table, DISTINCT_EXPERTS.name))
    if distinct.empty:
        return {}
    layers, notes = panels.shown_layers(panels.layers(distinct), limit=2)
    figure, axes = panels.panels(1, len(layers), width=4.8, sharey=False)
    for panel, layer in zip(axes[0], layers, strict=True):
        _draw_distinct(panel, result, layer)
    axes[0, 0].set_ylabel("distinct experts")
    return {"batches": panels.finish(figure, distinct, title="Distinct experts of T tokens", notes=notes)}


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
    axes.set_xlabel("number of tokens T")
