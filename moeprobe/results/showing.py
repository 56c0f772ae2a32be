"""Results as a notebook shows them: a short table, and figures."""

import base64
import html
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of, sources
from moeprobe.metrics.reading_order import compared_first
from moeprobe.results.numbers import interval
from moeprobe.results.tables import FLOORS, agreement_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Lines of a short table; every number is in ``table``.
_LINES = 60


class Figures(dict[str, "Figure"]):
    """Figures by name; a notebook shows them one below the other."""

    def __repr__(self) -> str:
        return f"Figures({', '.join(self)})"

    def _repr_html_(self) -> str:
        return "".join(
            f"<div><img alt='{html.escape(name)}' src='{_png(one)}'></div>" for name, one in self.items()
        )


def _png(figure: "Figure") -> str:
    """Return a figure as a data URL."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def summary(table: pd.DataFrame, comparison: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return what is read first: a line per layer, severity and metric, a column per checkpoint and difference.

    Args:
        table: of a run, with the columns of ``columns.COLUMNS``.
        comparison: its paired differences.
    """
    first = agreement_of(table)
    shown = _whole(table)
    titles = compared_first(first)
    named = pd.Series(list(zip(shown["metric"], shown["null"], strict=True)), index=shown.index, dtype=object)
    if not named.isin(titles).any():
        titles = {name: name[0].replace("_", " ") for name in named if not name[1]}
    columns: dict[str, pd.DataFrame] = dict(tuple(shown.groupby("checkpoint", sort=False)))
    if comparison is not None:
        for (name, reference), rows in _whole(comparison).groupby(["checkpoint", "reference"], sort=False):
            columns[f"{name} − {reference}"] = rows
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for heading, rows in columns.items():
        for row in rows.to_dict("records"):
            title = titles.get((row["metric"], row["null"]))
            if title is None:
                continue
            severity = row.get("severity")
            place = "" if severity is None or pd.isna(severity) else f"{severity:g}"
            line = lines.setdefault((row["layer"] or "output", place, title), {})
            line[heading] = interval(row, signed="reference" in row)
    found = pd.DataFrame(
        [
            {"layer": layer, "severity": place, "metric": title, **line}
            for (layer, place, title), line in lines.items()
        ],
        columns=["layer", "severity", "metric", *columns],
    ).fillna("")
    return found if (found["severity"] != "").any() else found.drop(columns="severity")


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all experts and ordinary tokens together, without the noise floor and single draws."""
    keep = table["expert"].isna() & table["tokens"].isin([*ORDINARY, ""]) & ~table["view"].isin(FLOORS)
    return table[keep & table["draw"].isna()] if "draw" in table else table[keep]


def heading(request: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Return what a result rests on: inputs, view, seed, and whether it has intervals.

    Args:
        request: of the probe, as in a sidecar.
        table: its values or differences.
    """
    modality, images = modality_of(table["tokens"]), int(table["images"].max())
    view = request.get("view", {})
    intervals, units = table["ci_low"].notna().any(), modality.plural
    parts = [
        sources(images, modality, data=request.get("data", ""), split=request.get("split", "")),
        f"view {view['name']}" if view.get("name") else "",
        f"seed {request['seed']}" if "seed" in request else "",
        f"95 % intervals over {units}" if intervals else f"no intervals: they need at least 20 {units}",
    ]
    return "; ".join(part for part in parts if part)


def table_html(table: pd.DataFrame, *, caption: str) -> str:
    """Return the first lines of a table as HTML."""
    more = len(table) - _LINES
    rest = f"<p>… {more} more lines</p>" if more > 0 else ""
    body = table.head(_LINES).to_html(index=False, border=0)
    return f"<p><b>{html.escape(caption)}</b></p>{body}{rest}"


def one_line(name: str, parts: Mapping[str, Any]) -> str:
    """Return a short ``repr``."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in parts.items())})"
