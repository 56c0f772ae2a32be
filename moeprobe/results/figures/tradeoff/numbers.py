"""Which numbers of a trade-off are read first: of the output, of the costs, and of the first MoE layer.

The first layer, since where the head reads the class token alone, what the last one does to patches reaches nothing.
"""

import numpy as np
import pandas as pd

from moeprobe.metrics.attention_contagion import AttentionContagion
from moeprobe.metrics.batch_contagion import BatchContagion
from moeprobe.metrics.costs import (
    ACTIVE_PARAMETERS,
    FLOPS_PER_IMAGE,
    STEP_SECONDS,
    STEP_SECONDS_IN_TURN,
    TRAINING_STEPS,
)
from moeprobe.metrics.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.load import LOAD_ENTROPY
from moeprobe.metrics.output import ACCURACY
from moeprobe.metrics.registry import find
from moeprobe.metrics.token_contagion import TokenContagion
from moeprobe.results.figures import panels

TRAINING_TIME = "training_time"


def numbers_of(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is read first: name -> a row per cell that has it, indexed by cell; first MoE layer, patches."""
    first = table.groupby("checkpoint")["layer"].transform(_first)
    table = table[(table["layer"] == "") | (table["layer"] == first)]
    found: dict[str, pd.DataFrame] = {}

    def take(name: str, rows: pd.DataFrame) -> None:
        if len(rows):
            found[name] = rows.drop_duplicates("checkpoint").set_index("checkpoint")

    clean = table[table["view"].isin(["clean", ""])]
    take("accuracy", panels.select(clean, metric=ACCURACY.name))
    steps = panels.select(table, metric=TRAINING_STEPS.name).set_index("checkpoint")["value"]
    seconds = panels.select(table, metric=STEP_SECONDS_IN_TURN.name)
    seconds = seconds if len(seconds) else panels.select(table, metric=STEP_SECONDS.name)
    if len(seconds):
        take(TRAINING_TIME, seconds.assign(value=seconds["value"] * seconds["checkpoint"].map(steps)))
    for name in (FLOPS_PER_IMAGE.name, ACTIVE_PARAMETERS.name):
        take(name, panels.select(table, metric=name))
    kappa = shared_kappa(table)
    for view in dict.fromkeys(table["view"]):
        here = table[(table["view"] == view) & ~table["view"].isin(["clean", ""])]
        strongest = here[here["severity"].isna() | (here["severity"] == here["severity"].max())]
        at = "" if strongest["severity"].isna().all() else f" {strongest['severity'].max():g}"
        if kappa is not None:
            take(f"κ, {view}{at}", panels.select(strongest, metric=kappa, null="pooled"))
        take(f"accuracy, {view}{at}", panels.select(strongest, metric=ACCURACY.name))
    take(LOAD_ENTROPY.noun, panels.select(clean, metric=LOAD_ENTROPY.name))
    few = table[(table["metric"] == FEWSHOT_ACCURACY.name) & table["draw"].isna()]
    for shots, rows in few.groupby("severity"):
        take(f"{shots:g}-shot accuracy", rows)
    for kind in (BatchContagion, TokenContagion, AttentionContagion):
        share, *_ = kind.measures
        take(share.label, panels.select(table, metric=share.name))
    return found


def shared_kappa(table: pd.DataFrame) -> str | None:
    """Return the match beyond chance that most of the cells have, the first of several; None without any."""
    rows = table[(table["null"] == "pooled") & table["metric"].map(lambda name: find(name).kind == "kappa")]
    count = rows.groupby("metric", sort=False)["checkpoint"].nunique()
    return None if count.empty else str(count.index[int(np.argmax(count.to_numpy()))])


def _first(layers: pd.Series) -> str:
    """Return the first MoE layer among the layers of a cell's rows."""
    return next((layer for layer in layers if layer), "")
