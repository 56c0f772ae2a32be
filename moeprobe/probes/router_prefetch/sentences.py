"""What a table of ``prefetch`` says in words."""

import pandas as pd

from moeprobe.judging.selection import ends_of
from moeprobe.metrics.analyses.router_ahead import PREFETCH_ROUTER
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.results.numbers import interval, number


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each model what its routers find a layer earlier, over all layers, and where most and least."""
    return [
        sentence
        for name in dict.fromkeys(table["checkpoint"])
        for sentence in _of_model(table[table["checkpoint"] == name], str(name))
    ]


def _of_model(table: pd.DataFrame, name: str) -> list[str]:
    over_all = table[table["layer"] == ""]
    rows = table if over_all.empty else over_all
    size = min(rows["severity"])
    every = {(row["metric"], row["null"]): row for row in rows[rows["severity"] == size].to_dict("records")}
    recall = every[PREFETCH_ROUTER.name, ""]
    levels = [
        number(every[f"{PREFETCH_ROUTER.name}{CHANCE}", null]["value"]) for null in PREFETCH_ROUTER.nulls
    ]
    sentence = (
        f"{name}: with {int(size):,} experts per layer loaded ahead, the next router finds {interval(recall)} of the "
        f"choices a layer earlier (busiest experts of other inputs {levels[0]}, even router {levels[1]})."
    )
    keep = (table["metric"] == f"{PREFETCH_ROUTER.name}{KAPPA}") & (table["null"] == "busiest")
    kappas = table[keep & (table["severity"] == size) & (table["layer"] != "") & table["value"].notna()]
    if len(kappas) < 2:
        return [sentence]
    spread = ends_of(kappas)
    return [sentence, f"{name}: beyond the busiest experts, the next router predicts with κ {spread}."]
