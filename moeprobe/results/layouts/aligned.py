"""Aligned trainings: a line per layer and pair, then a line per layer and set of trainings."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import KAPPA
from moeprobe.results.layouts.cells import Table, TableCell, counts, value

_SHARES = (
    alignment.SHARE_DATA,
    alignment.SHARE_POSITION,
    alignment.SHARE_CONTENT,
    alignment.SHARE_SEED,
)
# Stands between two sets of trainings whose difference is given.
_MINUS = " − "
_Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def aligned_tables(table: pd.DataFrame, *, caption: str) -> list[Table]:
    """Return the agreement of pairs on held-out inputs beside that in sample, and the shares of sets of trainings."""
    # In a file missing values are empty.
    of_no_expert = table["expert"].isna() | table["expert"].astype(object).eq("")
    ordinary = table[table["tokens"].isin(ORDINARY) & table["layer"].ne("") & of_no_expert]
    of_pairs: dict[str, tuple[str, str]] = {
        EXPERT_OVERLAP.short: (EXPERT_OVERLAP.name, ""),
        "κ": (f"{EXPERT_OVERLAP.name}{KAPPA}", "pooled"),
        "κ, position": (f"{EXPERT_OVERLAP.name}{KAPPA}", "position"),
    }
    of_pairs |= {
        metric.short: (metric.name, "")
        for metric in (alignment.FITTED, alignment.FITTED_UNRELATED, alignment.FITTED_P)
    }
    of_sets = {metric.short: (metric.name, "") for metric in _SHARES}
    plural = modality_of(table["tokens"]).plural
    pairs, sets = ordinary[ordinary["metric"] == alignment.FITTED.name], _of_sets(ordinary)
    tables = [_lines(ordinary, pairs, of_pairs, caption=caption, heading="pair", plural=plural)]
    if len(sets):
        tables.append(
            _lines(
                ordinary,
                sets,
                of_sets,
                caption="What determines the routing; intervals over images and trainings",
                heading="trainings",
                plural=plural,
            )
        )
    return tables


def difference_label(name: str, reference: str) -> str:
    """Return what tables call the difference of two sets of trainings."""
    return f"{name}{_MINUS}{reference}"


def is_difference(name: str) -> bool:
    """Whether a line is about such a difference."""
    return _MINUS in name


def _of_sets(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["metric"] == alignment.SHARE_DATA.name]


def _lines(
    table: pd.DataFrame,
    leading: pd.DataFrame,
    columns: Mapping[str, tuple[str, str]],
    *,
    caption: str,
    heading: str,
    plural: str,
) -> Table:
    """Return a line for each of the ``leading`` rows, by layer."""
    present = set(zip(table["metric"], table["null"], strict=True))
    measured = {label: which for label, which in columns.items() if which in present}
    lines = []
    layers = list(dict.fromkeys(leading["layer"]))
    for layer in layers:
        for name in leading[leading["layer"] == layer]["checkpoint"]:
            pick = _picker(table[(table["checkpoint"] == name) & (table["layer"] == layer)])
            signed = is_difference(name)
            cells = [value(pick(which), signed=signed) for which in measured.values()]
            images = leading[(leading["layer"] == layer) & (leading["checkpoint"] == name)]["images"]
            lines.append([TableCell(layer), TableCell(name), *cells, counts([images.max()])])
    return Table(caption, ["layer", heading, *measured, plural], lines, keys=2, place=1, details=1)


def _picker(rows: pd.DataFrame) -> Callable[[tuple[str, str]], Mapping[str, Any] | None]:
    by_name: _Rows = {(row["metric"], row["null"]): row for row in rows.to_dict("records")}
    return by_name.get
