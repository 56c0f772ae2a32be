"""What several figures share: panels, points with intervals, layers as an axis, names beside lines."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine, TightLayoutEngine
from matplotlib.legend import Legend

from moeprobe.inputs.modality import ORDINARY, REQUEST, Modality
from moeprobe.inputs.regions import REGIONS
from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS
from moeprobe.results.figures import STYLE
from moeprobe.results.numbers import no_intervals
from moeprobe.results.tables import SHOWN_LAYERS, first_and_last, modality_of_table

_CAPTION_SIZE, _CAPTION_COLOR = 9, "#505050"


def panels(
    rows: int, columns: int, *, width: float = 4.2, height: float = 2.9, sharey: bool = True
) -> tuple[Figure, np.ndarray]:
    """Return a figure with ``rows`` x ``columns`` axes ``(rows, columns)``; a row shares its y axis if ``sharey``."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.9), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if sharey else False)
    return figure, axes


def pictures(rows: int, columns: int, size: tuple[float, float], **ratios: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``size`` inches with axes ``(rows, columns)`` that have no grid lines.

    ``ratios`` of widths or heights are as ``subplots`` takes them.
    """
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **ratios)
    return figure, axes


def points(
    axes: Axes,
    x: np.ndarray,
    rows: pd.DataFrame,
    *,
    color: str,
    label: str,
    fmt: str = "o",
    size: float = 5,
    width: float = 1.5,
) -> None:
    """Draw values with their intervals at ``x``; without an interval none is drawn, without a value nothing."""
    value = rows["value"].to_numpy(float)
    low = value - rows["ci_low"].fillna(rows["value"]).to_numpy(float)
    high = rows["ci_high"].fillna(rows["value"]).to_numpy(float) - value
    # Rounding may leave an end a hair on the wrong side of a value at the edge of its range.
    errors = np.clip(np.stack([low, high]), 0, None)
    axes.errorbar(
        x, value, yerr=errors, fmt=fmt, color=color, label=label,
        markersize=size, capsize=0.6 * size, linewidth=width,
    )  # fmt: skip


def name_collapsed(axes: Axes, x: np.ndarray, rows: pd.DataFrame, *, color: str) -> None:
    """Write "collapsed" where a kappa does not exist for that: nothing there would look like nothing measured."""
    for position in x[(rows["flag"] == "collapsed").to_numpy(bool)]:
        axes.text(
            position, 0.03, "collapsed", color=color, rotation=90, fontsize=8, ha="center", va="bottom",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def finish(
    figure: Figure,
    rows: pd.DataFrame,
    *,
    title: str,
    notes: Sequence[str] = (),
    mark: str | None = "bars",
    sampled: Modality | None = None,
) -> Figure:
    """Add the heading, one legend for all panels, and the caption: the content and the data behind it.

    ``rows`` are those that the figure shows. ``mark`` is what shows the intervals; None where single images are
    shown, which have none. ``sampled`` is what intervals are over, where that is not what the models read.
    """
    first = rows.iloc[0]
    images = sorted(set(rows["images"]))
    count = f"{images[0]:,}" if len(images) == 1 else f"{images[0]:,}–{images[-1]:,}"
    modality = modality_of_table(rows, data=first["dataset"], inputs=sampled)
    what = modality.units if images[-1] != 1 else modality.unit
    # The data of requests are called requests, which their number says, too.
    data = "" if first["dataset"] == REQUEST.data else f"{first['dataset']} {first['split']}".strip()
    number = "" if mark is None else f"{count} {what}; {_intervals(rows, mark, modality.units)}"
    content = ", ".join(part for part in (data, number) if part)
    figure.suptitle(wrap(title, figure.get_figwidth()))
    return add_caption(figure, ". ".join(part for part in (*notes, content) if part) + ".")


def add_caption(figure: Figure, text: str) -> Figure:
    """Write a caption under all panels, above it one legend for all, on paper added for both.

    Call it once, when all else is drawn.
    """
    width, height = figure.get_size_inches()
    lines = wrap(text, width - 0.2, size=_CAPTION_SIZE)
    room = ((lines.count("\n") + 1) * 1.35 * _CAPTION_SIZE + 5) / 72
    legend = _legend(figure)
    room_of_legend = 0.0
    if legend is not None:
        legend.set_in_layout(False)
        renderer = FigureCanvasAgg(figure).get_renderer()
        # With the space that a legend keeps from its place, below, and as much above.
        room_of_legend = legend.get_window_extent(renderer).height / figure.dpi + 12 / 72
    total_height = height + room + room_of_legend
    figure.set_size_inches(width, total_height)
    share, total = room / total_height, (room + room_of_legend) / total_height
    figure.text(
        0.1 / width, 0.2 * share, lines, fontsize=_CAPTION_SIZE, va="bottom", ha="left", color=_CAPTION_COLOR
    )
    if legend is not None:
        legend.set_bbox_to_anchor((0, share, 1, 1 - share))
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine | TightLayoutEngine)
    engine.set(rect=(0, total, 1, 1 - total))
    return figure


def _legend(figure: Figure) -> Legend | None:
    """Add one legend for all panels; None where nothing is labeled."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return None
    # A legend wider than the figure would be cut off: about eleven characters fit an inch, with the handles.
    widest = max(len(label) for label in entries) + 6
    ncols = max(1, min(len(entries), int(figure.get_figwidth() * 11 / widest)))
    return figure.legend(entries.values(), entries.keys(), loc="lower center", ncols=ncols, frameon=False)


def _intervals(table: pd.DataFrame, mark: str, units: str) -> str:
    is_carried = "flag" in table and (table["flag"] == FEW_CARRIERS).any()
    if table["ci_low"].notna().any():
        return f"{mark}: 95 % over {units}{f', none where few {units} carry the mean' if is_carried else ''}"
    return f"no {mark}: few {units} carry the means" if is_carried else no_intervals(units)


def note_undrawn(table: pd.DataFrame) -> list[str]:
    """Return a note that names rows only in the table; none where all are drawn."""
    parts = ["chance and κ by class"] if (table["null"] == "class").any() else []
    parts += ["foreground and background"] if table["tokens"].isin(REGIONS).any() else []
    return [f"In the table only: {', '.join(parts)}"] if parts else []


def shown_layers(every: list[str], *, limit: int = SHOWN_LAYERS) -> tuple[list[str], list[str]]:
    """Return the layers that have panels, of more than ``limit`` the first and the last, and a note on the others."""
    with_panels = first_and_last(every, limit=limit)
    note = "In the table only: the layers between"
    return with_panels, [note] if len(with_panels) < len(every) else []


def wrap(text: str, inches: float, *, size: float = 11) -> str:
    """Return a text of ``size`` points in lines of at most so many inches; ten characters an inch at 11 points."""
    return textwrap.fill(text, int(110 / size * inches))


def select(table: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the rows whose columns have the given values."""
    keep = pd.Series(True, index=table.index)
    for column, value in wanted.items():
        keep &= table[column] == value
    return table[keep]


def ordinary(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about patches of images, or tokens of texts."""
    return table[table["tokens"].isin(ORDINARY)]


def by_metric(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return a row per metric, in the order asked for; empty where there is none."""
    return rows.set_index("metric").reindex(list(metrics))


def layers(table: pd.DataFrame) -> list[str]:
    """Return the MoE layers of a table in their order."""
    return [name for name in dict.fromkeys(table["layer"]) if name]


def checkpoints(table: pd.DataFrame) -> list[str]:
    """Return the checkpoints of a table in their order."""
    return list(dict.fromkeys(table["checkpoint"]))


# MoE layers as an axis: for models with more layers than panels fit on a page.

# Labels that fit side by side under one panel.
_MOST_LABELS = 12
_NUMBER = re.compile(r"\d+")


def draw_over_layers(
    axes: Axes,
    rows: pd.DataFrame,
    layers: Sequence[str],
    *,
    color: str,
    label: str,
    shift: float = 0.0,
    style: str = "o-",
) -> None:
    """Draw values with their bars over the layers; ``shift`` offsets one line from another, in layers."""
    by_layer = rows.drop_duplicates("layer").set_index("layer").reindex(list(layers))
    x = np.arange(len(layers)) + shift
    points(axes, x, by_layer, color=color, label=label, fmt=style, size=3.5, width=1.0)
    name_collapsed(axes, x, by_layer, color=color)


def shifts(count: int) -> np.ndarray:
    """Return the offsets of so many lines."""
    return 0.5 * (np.arange(count) - (count - 1) / 2) / max(count, 1)


def name_shifts(names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each name with the offset of its line."""
    return zip(names, shifts(len(names)), strict=True)


def label_layers(axes: Axes, layers: Sequence[str], *, with_label: bool = True) -> None:
    """Let x be the layers, by their numbers where nothing else distinguishes them; ``with_label``: and say so."""
    numbers = [_NUMBER.findall(name) for name in layers]
    numbered = len({_NUMBER.sub("#", name) for name in layers}) == 1 and all(
        len(digits) == 1 for digits in numbers
    )
    labels = [digits[0] for digits in numbers] if numbered else list(layers)
    step = -(-len(layers) // _MOST_LABELS) if numbered else -(-len(layers) // (2 * _MOST_LABELS))
    ticks = range(0, len(layers), step)
    axes.set_xticks(list(ticks), [labels[tick] for tick in ticks], rotation=0 if numbered else 90)
    axes.set_xlim(-0.6, len(layers) - 0.4)
    if with_label:
        axes.set_xlabel(f"MoE layer ({_NUMBER.sub('N', layers[0])})" if numbered else "MoE layer")


# Names written next to what they name, in its color: no legend has to be matched by eye.

# Their size in points, and the height of a line, in inches.
_NAME_SIZE = 8
_LINE = 1.25 * _NAME_SIZE / 72


class Named(NamedTuple):
    """A point in data coordinates, what it is called, and the look of its line."""

    x: float
    y: float
    text: str
    color: str
    style: str = "-"


def write_beside(axes: Axes, points: Sequence[Named], *, height: float) -> None:
    """Write names right of a panel, each as near to the height of its point as the others let it, with a thin line.

    Call it when all else is drawn and both scales are set: the limits stay as they are then.

    Args:
        axes: the panel.
        points: labeled points; points that are not finite are left out.
        height: of the panel, about, in inches.
    """
    points = [point for point in points if np.isfinite([point.x, point.y]).all()]
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    to_panel = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_panel.transform((point.x, point.y))[1] for point in points])
    for point, y in zip(points, spread(heights, _LINE / height), strict=True):
        axes.annotate(
            point.text, (point.x, point.y), xytext=(1.04, y), textcoords="axes fraction", color=point.color,
            fontsize=_NAME_SIZE, va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": point.color, "linestyle": point.style, "linewidth": 0.6, "alpha": 0.6,
                "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Return places ``(n,)`` at least ``gap`` apart, in the order of the wanted ones and nearest to them (squares).

    Between 0 and 1 where that fits.
    """
    if not len(heights):
        return heights
    # Here, since most figures name nothing beside a line, and scipy takes a while to load.
    from scipy.optimize import isotonic_regression

    order = np.argsort(heights, kind="stable")
    steps = gap * np.arange(len(heights))
    room = max(1.0 - steps[-1], 0.0)
    # Apart by the gap is the same as not descending, once each has its number of gaps taken off.
    fitted = isotonic_regression(heights[order] - steps).x.clip(0.0, room) + steps
    positions = np.empty(len(heights))
    positions[order] = fitted
    return positions
