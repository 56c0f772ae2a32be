"""A line per layer on the hot experts of its windows, and one on the load of its ranks, a column per placement."""

from collections.abc import Mapping

import pandas as pd

from moeprobe.metrics.analyses.hot_experts import (
    HOT_NEXT_SHARE,
    HOT_OVERLAP,
    HOT_OVERLAP_SHUFFLED,
    LOAD_CHANGE,
    LOAD_CHANGE_SHUFFLED,
)
from moeprobe.metrics.analyses.rank_load import RANK_IMBALANCE, WINDOW_IMBALANCE
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.relabeled_ranks import OF_RANKS, OF_WINDOWS
from moeprobe.metrics.watched_load import (
    BATCH_CORRELATION,
    CHANGED_SINCE,
    FIRST_CHANGED,
    RECENT_CHANGE,
    USUAL_CHANGE,
    USUAL_SHARE,
)
from moeprobe.results.layouts.cells import Table, TableCell, value

_HOT = {
    "next window": HOT_OVERLAP.name,
    "chance": f"{HOT_OVERLAP.name}{CHANCE}",
    "shuffled": HOT_OVERLAP_SHUFFLED.name,
    "κ": f"{HOT_OVERLAP.name}{KAPPA}",
    "next load": HOT_NEXT_SHARE.name,
    "change of load": LOAD_CHANGE.name,
    "change, shuffled": LOAD_CHANGE_SHUFFLED.name,
}
_RANKS = {
    "": RANK_IMBALANCE.name,
    "ratio": OF_RANKS.ratio.name,
    "p": OF_RANKS.p.name,
    "within windows": WINDOW_IMBALANCE.name,
    "within: ratio": OF_WINDOWS.ratio.name,
    "within: p": OF_WINDOWS.p.name,
}
_WATCHED = {
    "usual": USUAL_SHARE.name,
    "change": USUAL_CHANGE.name,
    "shown at batch": FIRST_CHANGED.name,
    "in batches from": CHANGED_SINCE.name,
    "change in these": RECENT_CHANGE.name,
    "correlation of batches": BATCH_CORRELATION.name,
}
# What follows from the number of experts alone, and so has no interval.
_LEVELS = (f"{HOT_OVERLAP.name}{CHANCE}",)


def hot_experts_table(table: pd.DataFrame) -> Table | None:
    """Return the table of hot experts; None where there is a single window.

    Args:
        table: values over all windows.
    """
    note = "next load: share of the choices that go to the experts that were hot in the window before."
    caption = "Overlap of hot experts, from window to window"
    return _of_one_view(table, HOT_OVERLAP.name, _HOT, caption=caption, note=note)


def watched_table(table: pd.DataFrame) -> Table | None:
    """Return the table of the load since the baseline, all layers together first; None where nothing was watched.

    Args:
        table: values over all batches.
    """
    note = (
        "usual: share of the choices of the experts that were hot in the baseline. The intervals of change hold after "
        "every batch at once; intervals of single layers hold for all layers at once."
    )
    return _of_one_view(table, USUAL_CHANGE.name, _WATCHED, caption="Load since the baseline", note=note)


def _of_one_view(
    table: pd.DataFrame, leading: str, labels: Mapping[str, str], *, caption: str, note: str
) -> Table | None:
    """Return the table of the metrics by ``labels`` in the view of the ``leading`` one; None where that is absent."""
    rows = table[table["metric"] == leading]
    if rows.empty:
        return None
    view = rows["view"].iloc[0]
    return _table(
        table, {label: (metric, view) for label, metric in labels.items()}, caption=caption, note=note
    )


def placements(table: pd.DataFrame) -> list[str]:
    """Return the placements of a table: the given one, the same on the second half, and the greedy one there."""
    return list(dict.fromkeys(table.loc[table["metric"] == RANK_IMBALANCE.name, "view"]))


def placements_table(table: pd.DataFrame) -> Table | None:
    """Return the table of ranks, all layers together last; None where no placement was measured.

    Numbers within windows are left out where there is a single window.

    Args:
        table: values over all windows.
    """
    names = placements(table)
    if not names:
        return None
    present = set(table["metric"])
    columns = {label or names[0]: (metric, names[0]) for label, metric in _RANKS.items() if metric in present}
    columns |= {name: (RANK_IMBALANCE.name, name) for name in names[1:]}
    note = (
        "1 = even. All layers: busiest ranks added up over means added up. ratio: to the mean where experts are "
        "relabeled within each request."
    )
    return _table(table, columns, caption="Load of the busiest rank over the mean", note=note)


def _table(table: pd.DataFrame, columns: Mapping[str, tuple[str, str]], *, caption: str, note: str) -> Table:
    """Return a line per layer, and per kind of tokens where some are of pictures; columns are metrics in a view."""
    metrics = {metric for metric, _ in columns.values()}
    rows = {
        (row["layer"], row["tokens"], row["metric"], row["view"]): row
        for row in table[table["metric"].isin(metrics)].to_dict("records")
    }
    lines = []
    line_keys = dict.fromkeys((layer, tokens) for layer, tokens, *_ in rows)
    with_kinds = len({tokens for _, tokens in line_keys}) > 1
    for layer, tokens in line_keys:
        cells = [value(rows.get((layer, tokens, *which))) for which in columns.values()]
        levels = [metric in _LEVELS for metric, _ in columns.values()]
        cells = [
            TableCell(cell.text, key=cell.key) if level else cell
            for cell, level in zip(cells, levels, strict=True)
        ]
        kind = [TableCell(tokens)] if with_kinds else []
        lines.append([TableCell(layer or "all"), *kind, *cells])
    keys = ["layer", "tokens"] if with_kinds else ["layer"]
    return Table(caption, [*keys, *columns], lines, note, keys=len(keys))
