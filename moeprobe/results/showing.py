"""Results as a notebook shows them: a short table, and figures."""

import base64
import html
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from moeprobe.inputs.modality import modality_of, sources
from moeprobe.results.layouts.cells import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Figures(dict[str, "Figure"]):
    """Figures by name; a notebook shows them one below the other."""

    def __repr__(self) -> str:
        return f"Figures({', '.join(self)})"

    def _repr_html_(self) -> str:
        return "".join(
            f"<div><img alt='{html.escape(name)}' src='{_png(figure)}'></div>"
            for name, figure in self.items()
        )


def _png(figure: "Figure") -> str:
    """Return a figure as a data URL."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


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
    modality = modality_of(table["tokens"], data=request.get("data", ""))
    images = int(table["images"].max())
    view = request.get("view", {})
    intervals, units = table["ci_low"].notna().any(), modality.plural
    parts = [
        sources(images, modality, data=request.get("data", ""), split=request.get("split", "")),
        f"view {view['name']}" if view.get("name") else "",
        f"seed {request['seed']}" if "seed" in request else "",
        f"95 % intervals over {units}" if intervals else f"no intervals: they need at least 20 {units}",
    ]
    return "; ".join(part for part in parts if part)


def one_line(name: str, parts: Mapping[str, Any]) -> str:
    """Return a short ``repr``."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in parts.items())})"
