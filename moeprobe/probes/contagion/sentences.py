"""What a table of ``contagion`` says in words."""

from collections.abc import Sequence

import pandas as pd

from moeprobe.metrics.analyses.attention_contagion import AttentionContagion
from moeprobe.metrics.analyses.batch_contagion import BatchContagion
from moeprobe.metrics.analyses.token_contagion import TokenContagion

EXCHANGES = {kind.metric: kind for kind in (BatchContagion, TokenContagion, AttentionContagion)}


def sentences(table: pd.DataFrame) -> list[str]:
    """Return which exchanges change nothing at all; empty where each changes something."""
    zero = unchanged(table)
    return [f"{sentence_on(zero)}."] if zero else []


def unchanged(table: pd.DataFrame) -> list[str]:
    """Return the numbers of patches that are 0 in every image: nothing changes by exchanging this."""
    patches = table[table["tokens"] == "patch"]
    zero = []
    for name in EXCHANGES:
        values = patches[patches["metric"].isin([name, f"{name}_distance"])]["value"].dropna()
        if len(values) and bool((values == 0).all()):
            zero.append(name)
    return zero


def sentence_on(names: Sequence[str]) -> str:
    """Return the sentence about exchanges that change nothing, without its full stop."""
    exchanged = " or ".join(f"{EXCHANGES[name].exchanged} are exchanged" for name in names)
    # The pixels of others reach a router through attention alone.
    routed_alone = "" if AttentionContagion.metric in names else ": each token is routed by itself"
    return f"0 exactly when {exchanged}{routed_alone}"
