"""What a table of ``drift`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.probes.drift.steps import FIRST, by_step
from moeprobe.results.numbers import interval
from moeprobe.results.tables import agreement_of

# Layers that a sentence names.
_NAMED = 3


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
        f"{end['layer'].nunique()} layers.{_separation(most, end.drop(most.name))}"
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


def _separation(most: pd.Series, others: pd.DataFrame) -> str:
    """Return whether the layer that moved most is separated from the others.

    It was picked for its value, so its own interval does not say. Intervals that hold for all layers at once do: where
    two of them are apart, so are the layers, however much the same sequences move both.
    """
    if others.empty or most["ci_low"] != most["ci_low"]:
        return ""
    layers = len(others) + 1
    images = int(most["images"])
    # Bonferroni: each interval leaves out a share of the 5 %.
    factor = critical(images, confidence=1 - (1 - CONFIDENCE) / layers) / critical(images)
    high = most["value"] + factor * (most["ci_high"] - most["value"])
    low = others["value"] - factor * (others["value"] - others["ci_low"])
    # Without an interval nothing separates a layer.
    overlapping = others[~(low > high)].sort_values("value")
    if overlapping.empty:
        following = others.loc[others["value"].idxmin()]
        return (
            f" It is separated from the next, {following['layer']} (κ {interval(following)}), and from all others: "
            "simultaneous 95 % intervals do not overlap."
        )
    named = ", ".join(overlapping["layer"][:_NAMED])
    more = f" and {len(overlapping) - _NAMED} more" if len(overlapping) > _NAMED else ""
    return f" It is not separated from {named}{more}: simultaneous 95 % intervals overlap."
