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


def place_of(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows that a sentence reads, and which layer it names: none where they are of all, or of the only one.

    Layers of several shapes are not added up, so the last of them is read.

    Args:
        table: of one model, or recording.
    """
    over_all = table[table["layer"] == ""]
    if len(over_all):
        return over_all, ""
    last = table["layer"].iloc[-1]
    return table[table["layer"] == last], f" in {last}" if table["layer"].nunique() > 1 else ""


def loaded_words(size: float) -> str:
    """Return how many experts are loaded, in words."""
    return "1 expert" if size == 1 else f"{int(size):,} experts"


def _of_model(table: pd.DataFrame, name: str) -> list[str]:
    rows, in_layer = place_of(table)
    size = min(rows["severity"])
    every = {(row["metric"], row["null"]): row for row in rows[rows["severity"] == size].to_dict("records")}
    recall = every[PREFETCH_ROUTER.name, ""]
    words = {"busiest": "busiest experts of other inputs", "even": "even router"}
    chances = [every[f"{PREFETCH_ROUTER.name}{CHANCE}", null] for null in PREFETCH_ROUTER.nulls]
    # A single input has no others, and so no value.
    levels = [
        f"{words[row['null']]} {number(row['value'])}" for row in chances if row["value"] == row["value"]
    ]
    sentence = (
        f"{name}: with {loaded_words(size)} per layer loaded ahead{in_layer}, the next router finds "
        f"{interval(recall)} of the choices a layer earlier ({', '.join(levels)})."
    )
    keep = (table["metric"] == f"{PREFETCH_ROUTER.name}{KAPPA}") & (table["null"] == "busiest")
    kappas = table[keep & (table["severity"] == size) & (table["layer"] != "") & table["value"].notna()]
    if len(kappas) < 2:
        return [sentence]
    spread = ends_of(kappas)
    return [sentence, f"{name}: beyond the busiest experts, the next router predicts with κ {spread}."]
