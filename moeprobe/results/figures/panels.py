"""What several figures share: panels, points with intervals, and one legend below."""

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine, TightLayoutEngine
from matplotlib.legend import Legend

from moeprobe.inputs.geometry import REGIONS
from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.results.figures import STYLE

_CAPTION = "#505050"


def panels(
    rows: int, columns: int, *, width: float = 4.2, height: float = 2.9, sharey: bool = True
) -> tuple[Figure, np.ndarray]:
    """Return a figure with ``rows`` x ``columns`` axes ``(rows, columns)``; a row shares its y axis if ``sharey``."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.9), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if sharey else False)
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
        x,
        value,
        yerr=errors,
        fmt=fmt,
        color=color,
        markersize=size,
        capsize=0.6 * size,
        linewidth=width,
        label=label,
    )


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
    modality = sampled or modality_of(rows["tokens"], data=first["dataset"])
    what = modality.plural if images[-1] != 1 else modality.name
    rests = "" if mark is None else f", {count} {what}; {_intervals(rows, mark, modality.plural)}"
    data = f"{first['dataset']} {first['split']}".strip()
    figure.suptitle(wrapped(title, figure.get_figwidth()))
    return add_caption(figure, ". ".join([*notes, f"{data}{rests}"]) + ".")


def add_caption(figure: Figure, text: str, *, size: float = 9) -> Figure:
    """Write a caption of ``size`` points under all panels, above it one legend for all, on paper added for both.

    Call it once, when all else is drawn.
    """
    width, height = figure.get_size_inches()
    lines = wrapped(text, width - 0.2, size=size)
    room = ((lines.count("\n") + 1) * 1.35 * size + 5) / 72
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
    figure.text(0.1 / width, 0.2 * share, lines, fontsize=size, va="bottom", ha="left", color=_CAPTION)
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
    if table["ci_low"].notna().any():
        return f"{mark}: 95 % over {units}"
    return f"no intervals: they need at least 20 {units}"


def note_undrawn(table: pd.DataFrame) -> list[str]:
    """Return a note that names rows only in the table; none where all are drawn."""
    parts = ["chance and κ by class"] if (table["null"] == "class").any() else []
    parts += ["foreground and background"] if table["tokens"].isin(REGIONS).any() else []
    return [f"In the table only: {', '.join(parts)}"] if parts else []


def note_between(panel_layers: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Return a note for a figure whose panels show only the first and the last layer."""
    return ["In the table only: the layers between"] if len(panel_layers) < len(layers) else []


def wrapped(text: str, inches: float, *, size: float = 11) -> str:
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
