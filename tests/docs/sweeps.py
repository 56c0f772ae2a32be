"""The committed numbers of a sweep, as the tests of the pages read them."""

from pathlib import Path

import pandas as pd


def table_of(folder: Path) -> pd.DataFrame:
    """Return the numbers of the cells; words that are not there are empty."""
    words = dict.fromkeys(("layer", "tokens", "null", "view"), str)
    found = pd.read_csv(folder / "table.csv.gz", dtype=words, low_memory=False)
    return found.fillna(dict.fromkeys(words, ""))


def differences_of(*folders: Path) -> pd.DataFrame:
    """Return what cells differ in from their references, of one sweep or several."""
    return pd.concat(
        [pd.read_csv(folder / "differences.csv", dtype={"layer": str}) for folder in folders]
    ).fillna({"layer": ""})


def changed(differences: pd.DataFrame, number: str, *groups: str, layer: str = "") -> pd.DataFrame:
    """Return one number of some groups: a row per group and training seed, of a layer or ("") of the output."""
    here = differences[differences["group"].isin(groups) & (differences["number"] == number)]
    here = here[here["layer"] == layer]
    assert len(here) == 3 * len(groups)
    return here


def above(rows: pd.DataFrame) -> int:
    """Return how many of the intervals lie above zero."""
    return int((rows["ci_low"] > 0).sum())


def below(rows: pd.DataFrame) -> int:
    """Return how many of the intervals lie below zero."""
    return int((rows["ci_high"] < 0).sum())


def excluding_zero(rows: pd.DataFrame) -> int:
    """Return how many of the intervals leave out zero."""
    return above(rows) + below(rows)
