"""Claims about other trainings and other images: the committed ones, and how a table shows them."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from reports.scripts.sweep_list import name_of


def read(folder: Path) -> pd.DataFrame:
    """Return the claims of a report: ``reports/trainings/digits`` without the ending of the file."""
    words = ("layer", "null", "view")
    table = pd.read_csv(folder.with_suffix(".csv"), dtype=dict.fromkeys(words, str))
    return table.fillna(dict.fromkeys(words, ""))


def of_sweep(folder: Path) -> pd.DataFrame:
    """Return the claims of a sweep by the folder of its other tables."""
    return read(folder.parents[1] / "trainings" / name_of(folder))


def cells_of(claims: pd.DataFrame, group: str, layer: str, numbers: Iterable[str]) -> list[str]:
    """Return the differences of a group of cells: a cell per number."""
    own = claims[(claims["group"] == group) & (claims["layer"] == layer)]
    return [cell_of(own[own["number"] == number]) for number in numbers]


def cell_of(rows: pd.DataFrame, digits: int = 3) -> str:
    """Return a mean difference with its simultaneous interval; "–" of no row."""
    if rows.empty:
        return "–"
    [row] = rows.to_dict("records")
    # A value that is rounded to 0 is not negative; an end that is tells on which side of 0 it lies.
    value, low, high = (
        f"{one:+.{digits}f}" for one in (round(row["value"], digits) + 0.0, row["sim_low"], row["sim_high"])
    )
    return f"{value} [{low}, {high}]"
