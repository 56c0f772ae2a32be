"""Claims about other trainings and other images: the committed ones, and how a table shows them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.two_way import TwoWay
from reports.scripts.sweep_list import name_of


def read(folder: Path) -> pd.DataFrame:
    """Return the claims of a report: ``reports/trainings/digits`` without the ending of the file."""
    words = ("layer", "null", "view")
    table = pd.read_csv(folder.with_suffix(".csv"), dtype=dict.fromkeys(words, str))
    return table.fillna(dict.fromkeys(words, ""))


def of_sweep(folder: Path) -> pd.DataFrame:
    """Return the claims of a sweep by the folder of its other tables."""
    return read(folder.parents[1] / "trainings" / name_of(folder))


def over_trainings(differences: Array, *, family: int = 1) -> dict[str, float]:
    """Return the mean of differences ``(trainings, images)``, and its interval over both.

    Args:
        differences: of pairs of trainings, each with what each image says of it.
        family: numbers whose intervals hold together (Šidák).
    """
    estimate = TwoWay.of(differences)
    low, high = estimate.ends(CONFIDENCE ** (1 / family))
    return {"value": estimate.value, "ci_low": low, "ci_high": high}


def cells_of(claims: pd.DataFrame, group: str, layer: str, numbers: Iterable[str]) -> list[str]:
    """Return the differences of a group of cells: a cell per number."""
    own = claims[(claims["group"] == group) & (claims["layer"] == layer)]
    return [cell_of(own[own["number"] == number]) for number in numbers]


def cell_of(rows: pd.DataFrame, digits: int = 3) -> str:
    """Return a mean difference with its simultaneous interval; "–" of no row."""
    if rows.empty:
        return "–"
    [row] = rows.to_dict("records")
    return said(row, digits)


def said(row: Mapping[Any, Any], digits: int = 3) -> str:
    """Return the mean difference of a claim with its simultaneous interval."""
    # A value that is rounded to 0 is not negative; an end that is tells on which side of 0 it lies.
    value, low, high = (
        f"{one:+.{digits}f}" for one in (round(row["value"], digits) + 0.0, row["sim_low"], row["sim_high"])
    )
    return f"{value} [{low}, {high}]"
