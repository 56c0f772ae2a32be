"""Figures: from a table to matplotlib, one kind per file. Nothing here imports torch.

Drawn without pyplot, so nothing is global and nothing depends on a screen.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.files import atomic_file

try:
    import matplotlib as mpl
except ValueError as error:  # it reads MPLBACKEND while it is imported
    raise UserError(
        f"matplotlib cannot be imported: {error}. Is the environment variable MPLBACKEND right? It may be unset."
    ) from None
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from moeprobe.results.figures.lettering import prepare_letters

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.edgecolor": "#808080",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.titlesize": 11,
    "legend.frameon": False,
    # Without a fixed salt and with text as text, the same figure is the same bytes, and can be searched.
    "svg.hashsalt": "moeprobe",
    "svg.fonttype": "none",
}
_DPI = 150


def save_all(figures: Mapping[str, Figure], folder: Path, *, svg: bool) -> list[Path]:
    """Write figures by their names into a folder, as ``save`` does; returns the files."""
    return [path for name, figure in figures.items() for path in save(figure, folder / name, svg=svg)]


def save(figure: Figure, stem: Path, *, svg: bool = False) -> list[Path]:
    """Write a figure as PNG, and with ``svg`` as SVG too; the same figure gives the same bytes. Returns the files."""
    written = []
    for kind in ("png", "svg") if svg else ("png",):
        path = stem.with_name(f"{stem.name}.{kind}")  # a name may hold dots: blocks.3
        with atomic_file(path) as temporary:
            temporary.write_bytes(render(figure, kind))
        written.append(path)
    return written


def render(figure: Figure, kind: str = "png") -> bytes:
    """Return a figure as the bytes of a PNG or an SVG file."""
    canvas = FigureCanvasAgg(figure)
    file = io.BytesIO()
    with mpl.rc_context(STYLE), prepare_letters(figure):
        # Letters are a hair wider or narrower at another resolution, and a long name is cut off.
        dpi = figure.dpi
        figure.set_dpi(_DPI)
        _settle(figure)
        if kind == "png":
            # ``savefig`` draws once for the layout, which is settled, before it draws.
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba()))
            # A tenth of the file would say of each pixel that it is opaque.
            if picture.getextrema()[-1] == (255, 255):
                picture = picture.convert("RGB")
            picture.save(file, "PNG", dpi=(_DPI, _DPI))
        else:
            # Nothing that changes from day to day.
            figure.savefig(file, format=kind, dpi=_DPI, metadata={"Date": None, "Creator": None})
        figure.set_dpi(dpi)
    return file.getvalue()


def _settle(figure: Figure) -> None:
    """Round where axes and titles are: the last digits of matplotlib's solver vary between runs, and files show it."""
    engine = figure.get_layout_engine()
    for axes in figure.axes:
        axes.apply_aspect()
    if engine is not None:
        engine.execute(figure)
    # As drawing would: axes that keep their aspect take less than the layout gives them.
    for axes in figure.axes:
        axes.apply_aspect()
    corners_of = [(axes, axes.get_position().get_points()) for axes in figure.axes]
    figure.set_layout_engine("none")
    for axes, corners in corners_of:
        axes.set_position(Bbox(corners.round(4)))
    for text in figure.texts:  # a title above all panels is centered over them
        x, y = text.get_position()
        text.set_position((round(x, 4), round(y, 4)))
