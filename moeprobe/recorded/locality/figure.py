"""The figure of ``trace locality``: reuse by the next token over the layers, and what caches find."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.expert_cache import CACHE_HIT, SHORT
from moeprobe.metrics.analyses.next_token import NEXT_TOKEN_REUSE
from moeprobe.metrics.declaration import CHANCE
from moeprobe.recorded.locality.sentences import STRICT, rows_of
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.layouts.expert_cache import of_all_layers
from moeprobe.results.palette import COLORS

# How matplotlib draws a line: marker, style, widths.
_Look = dict[str, Any]
_LEVELS = "0.4"
# The lines of a recording: metric, null, label, and form of the line.
_REUSE = (
    (NEXT_TOKEN_REUSE.name, "", "next token", "o-"),
    (f"{NEXT_TOKEN_REUSE.name}{CHANCE}", STRICT, "other tokens of the sequence", "^:"),
    (f"{NEXT_TOKEN_REUSE.name}{CHANCE}", "pooled", "other sequences", "s--"),
)
# The lines of caches: metric, null, label, and look of the line; of several recordings only the first.
_LRU = CACHE_HIT.make("lru").name
_THIN: _Look = {"marker": "o", "markersize": 3.5, "linewidth": 1.2}
# LFU often finds as much as LRU, so its line is wide enough to be seen on both sides of LRU's, which lies on it.
_WIDE: _Look = {
    "marker": "s",
    "markersize": 8.0,
    "linewidth": 5.0,
    "alpha": 0.4,
    "zorder": 1.9,
    "markeredgewidth": 0.0,
}
_CACHES: tuple[tuple[str, str, str, _Look], ...] = (
    (_LRU, "", SHORT["lru"], _THIN),
    (CACHE_HIT.make("lfu").name, "", SHORT["lfu"], _WIDE),
    *((CACHE_HIT.make(rule).name, "", SHORT[rule], _THIN) for rule in ("static", "optimal")),
    (f"{_LRU}{CHANCE}", "eviction", "random eviction", {"linestyle": "--", "linewidth": 1.2}),
    (f"{_LRU}{CHANCE}", "even", "even router", {"linestyle": ":", "linewidth": 1.2}),
)


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure: a panel of reuse by layer, and one of what caches find over their size."""
    table = result.table
    reuse = rows_of(table, NEXT_TOKEN_REUSE.name)
    if reuse.empty:
        return {}
    every = panels.layers(reuse)
    caches = of_all_layers(table)
    has_caches = not caches.empty and caches["layer"].nunique() == 1
    mark = "bars and bands" if has_caches else "bars"
    figure, axes = panels.panels(1, 1 + has_caches, width=4.8, sharey=False)
    _draw_reuse(axes[0, 0], result, every)
    if has_caches:
        _draw_caches(axes[0, 1], result, caches)
    # Caches are simulated for as many requests, or for some of them.
    drawn_rows = pd.concat([reuse, caches]) if has_caches else reuse
    return {
        "locality": panels.finish(figure, drawn_rows, title="Reuse of experts along sequences", mark=mark)
    }


def _draw_reuse(axes: Axes, result: Result, layers: list[str]) -> None:
    """Draw the reuse of each recording over the layers, with its chance levels."""
    names = panels.checkpoints(result.table)
    for name, shift in panels.name_shifts(names):
        of_recording = result.table[result.table["checkpoint"] == name]
        for metric, null, label, style in _REUSE:
            rows = rows_of(of_recording, metric, null)
            own_label = label if len(names) == 1 else f"{name}, {label}"
            color = result.sidecar.colors[name]
            panels.draw_over_layers(
                axes, rows, layers, color=color, label=own_label, shift=shift, style=style
            )
    panels.label_layers(axes, layers)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share of experts used again")


def _draw_caches(axes: Axes, result: Result, caches: pd.DataFrame) -> None:
    """Draw what caches of each rule find over their size: a band between the ends of the intervals of LRU."""
    names = panels.checkpoints(result.table)
    rules = _CACHES if len(names) == 1 else _CACHES[:1]
    for name in names:
        of_recording = caches[caches["checkpoint"] == name]
        for index, (metric, null, label, look) in enumerate(rules):
            keep = (of_recording["metric"] == metric) & (of_recording["null"].fillna("") == null)
            rows = of_recording[keep & of_recording["value"].notna()].sort_values("severity")
            # Chance levels in gray: the last color of the palette is too pale for a thin line.
            only = _LEVELS if null else COLORS[index + 1]
            color = only if len(names) == 1 else result.sidecar.colors[name]
            own_label = f"cache, {label}" if len(names) == 1 else f"{name}, cache, {label}"
            x = rows["severity"].to_numpy(float)
            axes.plot(x, rows["value"], color=color, label=own_label, **look)
            if rows["ci_low"].notna().all() and not null:
                axes.fill_between(
                    x, rows["ci_low"].to_numpy(float), rows["ci_high"].to_numpy(float), color=color, alpha=0.2
                )
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("experts per layer in the cache, all layers")
    axes.set_ylabel("share of choices found")
