"""What a table of ``drift`` says in words, and how its rows name the steps of a training."""

import itertools
import re
from collections.abc import Sequence

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.selection import Extreme
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.declaration import KAPPA
from moeprobe.recorded.drift import layers
from moeprobe.results.numbers import interval
from moeprobe.results.tables import deciding_match

# What the traces are compared with.
FIRST, LAST = "the first", "the last"
_AGAINST = " against "


def steps_of(names: Sequence[str]) -> list[float] | None:
    """Return the number in each name that tells it from the others; None where there is none that grows."""
    numbers = [[int(number) for number in re.findall(r"\d{1,15}", name)] for name in names]
    for column in zip(*numbers, strict=False) if len({len(row) for row in numbers}) == 1 else ():
        if all(number < following for number, following in itertools.pairwise(column)):
            return [float(number) for number in column]
    return None


def view_of(name: str, reference: str) -> str:
    """Return the name in column ``view`` of a trace that is compared with the first or the last."""
    return f"{name}{_AGAINST}{reference}"


def by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of drift with the columns ``name`` and ``against``."""
    parts = [view.rpartition(_AGAINST) for view in table["view"]]
    return table.assign(name=[name for name, *_ in parts], against=[against for *_, against in parts])


def kappas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the pooled κ of ordinary tokens, with ``name`` and ``against``."""
    rows = by_step(table[table["tokens"].isin(ORDINARY)])
    return rows[(rows["metric"] == f"{deciding_match(table)}{KAPPA}") & (rows["null"] == "pooled")]


def since_first(table: pd.DataFrame) -> pd.DataFrame:
    """Return the κ of the last checkpoint with the first, of each layer that has one."""
    rows = kappas(table)
    since = rows[rows["against"] == FIRST]
    names = list(dict.fromkeys(since["name"]))
    return since[(since["name"] == names[-1]) & since["value"].notna()] if names else since


def sentences(table: pd.DataFrame) -> list[str]:
    """Return in which layer routing moved most, and between which checkpoints half of the way lies.

    Where layers were tested all at once, what that says comes first.
    """
    end = since_first(table)
    if end.empty:
        return []
    rows = kappas(table)
    names = list(dict.fromkeys(rows.loc[rows["against"] == FIRST, "name"]))
    together = layers.sentence(table)
    selection = Extreme.of(end, lowest=True)
    num_layers = end["layer"].nunique()
    superlative, of_layers = ("most ", f", of {num_layers} layers") if num_layers > 1 else ("", "")
    sentence = (
        f"From the first checkpoint to {names[-1]} the routing moved {superlative}in {selection.row['layer']}: "
        f"κ {interval(selection.row)}{of_layers}.{_separation(selection)}"
    )
    differing = by_step(table[(table["metric"] == PAIRS_DIFFER.name) & table["tokens"].isin(ORDINARY)])
    differing = differing[(differing["against"] == FIRST) & differing["value"].notna()]
    last = differing[differing["name"] == names[-1]]
    if not last.empty:
        row = last.iloc[0]
        half = differing[differing["value"] >= row["value"] / 2]
        sentence += f" The experts differ in {interval(row)} of the pairs of token and layer"
        # With two checkpoints, half of the change is always reached at the second; of no change there is no half.
        is_halved = len(names) > 1 and row["value"] > 0
        sentence += f"; half of that is reached at {half.iloc[0]['name']}." if is_halved else "."
    return [*([together] if together else []), sentence]


def _separation(selection: Extreme) -> str:
    """Return whether the layer that moved most is separated from the others."""
    if selection.is_separated and selection.following is not None:
        following = selection.following
        return (
            f" It is separated from the next, {following['layer']} (κ {interval(following)}), and from all others: "
            "simultaneous 95 % intervals do not overlap."
        )
    if not selection.rivals:
        return ""
    return f" It is {selection.clause()}: simultaneous 95 % intervals overlap."
