"""What a table of ``drift`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.touched import PAIRS_DIFFER
from moeprobe.probes.drift.steps import FIRST, by_step
from moeprobe.results.numbers import interval
from moeprobe.results.tables import agreement_of


def kappas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the pooled κ of ordinary tokens, with ``name`` and ``against``."""
    rows = by_step(table[table["tokens"].isin(ORDINARY)])
    return rows[(rows["metric"] == f"{agreement_of(table)}{KAPPA}") & (rows["null"] == "pooled")]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return in which layer routing moved most, and between which checkpoints half of the way lies."""
    rows = kappas(table)
    since = rows[rows["against"] == FIRST]
    names = list(dict.fromkeys(since["name"]))
    end = since[(since["name"] == names[-1]) & since["value"].notna()] if names else since
    if end.empty:
        return []
    most = end.loc[end["value"].idxmin()]
    said = (
        f"From the first checkpoint to {names[-1]} the routing moved most in {most['layer']}: κ {interval(most)}, of "
        f"{end['layer'].nunique()} layers."
    )
    whole = by_step(table[(table["metric"] == PAIRS_DIFFER.name) & table["tokens"].isin(ORDINARY)])
    whole = whole[(whole["against"] == FIRST) & whole["value"].notna()]
    last = whole[whole["name"] == names[-1]]
    if not last.empty:
        row = last.iloc[0]
        half = whole[whole["value"] >= row["value"] / 2]
        said += f" The experts differ in {interval(row)} of the pairs of token and layer"
        # Of two checkpoints it is the second.
        said += f"; half of that is reached at {half.iloc[0]['name']}." if len(names) > 1 else "."
    return [said]
