"""What a table of ``trace locality`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import TEXT
from moeprobe.judging.selection import ends_of
from moeprobe.metrics.analyses.next_token import DISTANCES, NEXT_TOKEN_REUSE, REUSE_WITHIN
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.recorded.locality.cache_sentences import cache_sentences
from moeprobe.results.numbers import interval, number

REUSE_KAPPA = f"{NEXT_TOKEN_REUSE.name}{KAPPA}"
# The chance level that leaves the order of the tokens alone.
STRICT = "sequence"


def rows_of(table: pd.DataFrame, metric: str, null: str = "", *, tokens: str = TEXT.token) -> pd.DataFrame:
    """Return the rows of a number of some kind of tokens that have a value."""
    keep = (table["metric"] == metric) & (table["null"].fillna("") == null) & (table["tokens"] == tokens)
    return table[keep & table["value"].notna()]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each recording what the order of tokens adds, how prompts differ, and what caches find."""
    return [
        sentence
        for name in dict.fromkeys(table["checkpoint"])
        for sentence in _of_recording(table[table["checkpoint"] == name], str(name))
    ]


def _of_recording(table: pd.DataFrame, name: str) -> list[str]:
    kappas = rows_of(table, REUSE_KAPPA, STRICT)
    if kappas.empty:
        return []
    return [
        f"{name}: {_order(kappas)}{_parts(table, kappas)}{_recent(table, kappas)}",
        *cache_sentences(table, name),
    ]


def _order(kappas: pd.DataFrame) -> str:
    """Return how much more the next token reuses than other tokens of its sequence, in the layers at either end."""
    spread = ends_of(kappas)
    return f"beyond other tokens of the same sequence, the next token reuses experts with κ {spread}."


def _parts(table: pd.DataFrame, kappas: pd.DataFrame) -> str:
    """Return the reuse of prompt and generated tokens in the layer with the highest κ; empty where none is marked."""
    layer = kappas.loc[kappas["value"].idxmax(), "layer"]
    rows = {part: rows_of(table, NEXT_TOKEN_REUSE.name, tokens=part) for part in PARTS}
    parts = [
        f"{interval(row)} of {part} tokens"
        for part, of_part in rows.items()
        for row in of_part[of_part["layer"] == layer].to_dict("records")
    ]
    return f" There the reuse is {' and '.join(parts)}." if len(parts) == len(PARTS) else ""


def _recent(table: pd.DataFrame, kappas: pd.DataFrame) -> str:
    """Return how many choices have an expert of the last tokens in that layer, beside an even router."""
    layer = kappas.loc[kappas["value"].idxmax(), "layer"]
    for distance in reversed(DISTANCES):
        metric = REUSE_WITHIN.make(str(distance)).name
        rows, levels = (
            rows_of(table, column, null) for column, null in ((metric, ""), (f"{metric}{CHANCE}", "even"))
        )
        rows, levels = rows[rows["layer"] == layer], levels[levels["layer"] == layer]
        if distance > 1 and len(rows) and len(levels):
            return (
                f" The last {distance} tokens used {interval(rows.iloc[0])} of the chosen experts (even router "
                f"{number(levels['value'].iloc[0])})."
            )
    return ""
