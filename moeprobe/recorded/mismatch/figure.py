"""The figure of ``mismatch``: both divergences with their parts, and a point per request."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.metrics.analyses.mismatch import MismatchAnalysis
from moeprobe.results.figures import panels
from moeprobe.results.folder import Result
from moeprobe.results.numbers import decimals_of, no_intervals, number
from moeprobe.results.palette import colors
from moeprobe.results.tables import of_all_tokens

# Metrics of a panel from top to bottom, by what follows their common name.
_PARTS = {"": "all of it", "_routing": "due to routing", "_rest": "the rest"}
_TITLES = {"mismatch": "mean absolute difference", "mismatch_k3": "k3 divergence"}
# So many requests are points of an ordinary size; of more, small and pale ones, as pixels in an SVG too.
_FEW, _MANY = 100, 2000


def draw(result: Result) -> dict[str, Figure]:
    """Return the figure of a run: a panel per divergence, and one of the requests."""
    figure, axes = panels.panels(1, 3, width=3.7, height=2.9, sharey=False)
    palette = colors(list(_PARTS.values()))
    # Rows on the tokens of one kind stand in the table alone.
    table = of_all_tokens(result.table)
    sums = _sums_of_all_tokens(result)
    images = len(sums[MismatchAnalysis.signature])
    for panel, (name, title) in zip(axes[0], _TITLES.items(), strict=False):
        _parts(panel, table, name, palette)
        panel.set_title(title)
    requests = _requests(axes[0, 2], sums, color=palette["all of it"])
    count = f"{requests:,} request{'' if requests == 1 else 's'}"
    if unscored := images - requests:
        count += f"; {unscored:,} without a scored token are not shown"
    bars = "bars: 95 % over requests" if table["ci_low"].notna().any() else no_intervals("requests")
    figure.suptitle(f"Difference of log-probability between the server and {table['checkpoint'].iloc[0]}")
    text = (
        f"{count}; {bars}. On the right: below the line the model is nearer to the server with its routing."
    )
    return {"mismatch": panels.add_caption(figure, text)}


def _sums_of_all_tokens(result: Result) -> dict[str, NDArray[np.float64]]:
    """Return the sums of each request without those on the tokens of one kind."""
    all_kinds = ~np.isin(np.asarray(result.images["tokens"]).astype(str), TOKEN_KINDS)
    return {
        name: np.asarray(result.images[name], dtype=float)[all_kinds]
        for name in (MismatchAnalysis.signature, "mismatch_own", "mismatch_rest")
    }


def _parts(axes: Axes, table: pd.DataFrame, name: str, palette: dict[str, str]) -> None:
    """Draw the whole of one divergence and its two parts as points with intervals."""
    rows = table.set_index("metric")
    for position, (part, label) in enumerate(_PARTS.items()):
        row = rows.loc[f"{name}{part}"]
        value, ends = float(row["value"]), row[["ci_low", "ci_high"]].to_numpy(float)
        # Rounding may leave an end a hair on the wrong side of a value.
        errors = None if np.isnan(ends).any() else np.clip([[value - ends[0]], [ends[1] - value]], 0, None)
        axes.errorbar(
            [value],
            [position],
            xerr=errors,
            fmt="o",
            color=palette[label],
            markersize=6,
            capsize=4,
            linewidth=1.5,
        )
        value_text = (
            number(value, decimals=decimals_of({"metric": row.name, **row})) if abs(value) >= 5e-6 else "0"
        )
        above: Any = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(value_text, (value, position), **above)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(_PARTS)), list(_PARTS.values()))
    axes.set_ylim(len(_PARTS) - 0.5, -0.6)
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("nats per token")


def _requests(axes: Axes, sums: Mapping[str, NDArray[np.float64]], *, color: str) -> int:
    """Draw a point per request with scored tokens; returns how many there are."""
    has_scores = sums[MismatchAnalysis.signature] > 0
    own_error, replayed_error = (
        sums[name][has_scores] / sums[MismatchAnalysis.signature][has_scores]
        for name in ("mismatch_own", "mismatch_rest")
    )
    few = len(own_error) <= _FEW
    axes.scatter(
        own_error, replayed_error, s=18 if few else 6, alpha=0.7 if few else 0.3, color=color, linewidths=0,
        rasterized=len(own_error) > _MANY, clip_on=False, zorder=3,
    )  # fmt: skip
    limit = 1.06 * max(own_error.max(initial=0), replayed_error.max(initial=0), 1e-9)
    axes.plot([0, limit], [0, limit], color="#999999", linewidth=0.8)
    axes.set_xlim(0, limit)
    axes.set_ylim(0, limit)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    axes.set_title("each request, mean absolute")
    axes.set_xlabel("as the model routes it, nats per token")
    axes.set_ylabel("with the server's routing")
    return len(own_error)
