"""Results as a notebook shows them: a short table, and figures."""

import base64
import html
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from moeprobe.inputs.modality import sources
from moeprobe.results.layouts.cells import Table
from moeprobe.results.numbers import no_intervals
from moeprobe.results.tables import modality_of_table
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.progress import in_notebook

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Figures(dict[str, "Figure"]):
    """Figures by name; a notebook shows them one below the other, or the one that is taken out."""

    def __init__(self, *args: Any, **figures: "Figure") -> None:
        super().__init__(*args, **figures)
        if in_notebook():
            _let_notebook_show_figures()

    def __repr__(self) -> str:
        return in_one_line(f"Figures({', '.join(self)})")

    def _repr_html_(self) -> str:
        return "".join(
            f"<div><img alt='{html.escape(name)}' "
            f"src='data:image/png;base64,{base64.b64encode(_png(figure)).decode()}'></div>"
            for name, figure in self.items()
        )


def _let_notebook_show_figures() -> None:
    """Let a notebook show a figure, which by itself it does only after ``%matplotlib``; what it was told stays."""
    from IPython import get_ipython
    from matplotlib.figure import Figure

    formatter = get_ipython().display_formatter.formatters["image/png"]
    try:
        formatter.lookup_by_type(Figure)
    except KeyError:
        formatter.for_type(Figure, _png)


def _png(figure: "Figure") -> bytes:
    """Return a figure as a file of pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from moeprobe.results.figures.lettering import prepare_letters

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    with prepare_letters(figure):
        figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def as_frame(table: Table) -> pd.DataFrame:
    """Return a table of cells as a data frame of texts."""
    lines = [[cell.line for cell in row] for row in table.rows]
    return pd.DataFrame(lines, columns=list(table.columns))


def heading(request: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Return what a result rests on: inputs, view, seed, and whether it has intervals.

    Args:
        request: of the probe, as in a sidecar.
        table: its values or differences.
    """
    modality = modality_of_table(table, data=request.get("data", ""))
    images = int(table["images"].max())
    view = request.get("view", {})
    intervals, units = table["ci_low"].notna().any(), modality.units
    parts = [
        sources(images, modality, data=request.get("data", ""), split=request.get("split", "")),
        f"view {view['name']}" if view.get("name") else "",
        f"seed {request['seed']}" if "seed" in request else "",
        f"95 % intervals over {units}" if intervals else no_intervals(units),
    ]
    return "; ".join(part for part in parts if part)


def one_line(name: str, parts: Mapping[str, Any]) -> str:
    """Return a short ``repr``; names in it do not steer a terminal."""
    return in_one_line(f"{name}({', '.join(f'{key}={value}' for key, value in parts.items())})")
