"""What a table of ``trace locality`` says in words."""

from collections.abc import Callable

import pandas as pd

from moeprobe.inputs.modality import TEXT
from moeprobe.judging.selection import Extreme
from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, INDEPENDENT
from moeprobe.metrics.analyses.next_token import DISTANCES, NEXT_TOKEN_REUSE, REUSE_WITHIN
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.results.numbers import interval, number

REUSE_KAPPA = f"{NEXT_TOKEN_REUSE.name}{KAPPA}"
# The chance level that leaves the order of the tokens alone.
STRICT = "sequence"


def rows_of(table: pd.DataFrame, metric: str, null: str = "", *, tokens: str = TEXT.token) -> pd.DataFrame:
    """Return the rows of a number of some kind of tokens that have a value."""
    keep = (table["metric"] == metric) & (table["null"].fillna("") == null) & (table["tokens"] == tokens)
    return table[keep & table["value"].notna()]


def with_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of enough requests, since long stretches of few requests differ by accident; else all."""
    measured = rows[rows["ci_low"].notna()]
    return rows if measured.empty else measured


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each recording what the order of tokens adds, how prompts differ, and how many experts are touched."""
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
        *_distinct(table, name),
    ]


def _order(kappas: pd.DataFrame) -> str:
    """Return how much more the next token reuses than other tokens of its sequence, in the layers at either end."""
    spread = _ends(kappas, lambda row: row["layer"])
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


def _distinct(table: pd.DataFrame, name: str) -> list[str]:
    """Return how many experts a number of tokens touch, in the layers with the fewest and the most."""
    measured = with_intervals(rows_of(table, DISTINCT_EXPERTS.name))
    if measured.empty or measured["severity"].max() < 2:
        return []
    size = measured["severity"].max()
    rows = measured[measured["severity"] == size]
    independent = rows_of(table, INDEPENDENT.name)
    independent = independent[independent["severity"] == size].set_index("layer")["value"]
    ends = _ends(rows, lambda row: f"{row['layer']}, independent tokens {number(independent[row['layer']])}")
    return [f"{name}: {int(size):,} consecutive tokens use {ends} distinct experts."]


def _ends(rows: pd.DataFrame, describe: Callable[[pd.Series], str]) -> str:
    """Return the lowest and the highest value, each with its layer and those not separated from it; one if all are."""
    lowest, highest = (Extreme.of(rows, lowest=is_lowest) for is_lowest in (True, False))
    ends = [highest] if lowest.row["layer"] == highest.row["layer"] else [lowest, highest]
    return " to ".join(f"{interval(end.row)} ({describe(end.row)}{end.beside()})" for end in ends)
