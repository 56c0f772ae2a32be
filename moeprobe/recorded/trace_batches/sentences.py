"""What a table of ``trace batches`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import TEXT
from moeprobe.judging.selection import ends_of
from moeprobe.metrics.analyses.asleep import ASLEEP
from moeprobe.metrics.analyses.asleep import INDEPENDENT as ASLEEP_INDEPENDENT
from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, EVEN, INDEPENDENT
from moeprobe.results.numbers import number


def rows_of(table: pd.DataFrame, metric: str, *, tokens: str = TEXT.token) -> pd.DataFrame:
    """Return the rows of a number of some kind of tokens that have a value."""
    keep = (table["metric"] == metric) & (table["tokens"] == tokens)
    return table[keep & table["value"].notna()]


def with_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of enough requests, since long stretches of few requests differ by accident; else all."""
    measured = rows[rows["ci_low"].notna()]
    return rows if measured.empty else measured


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each recording how many experts tokens touch, and how many sleep through a request."""
    return [
        sentence
        for name in dict.fromkeys(table["checkpoint"])
        for of_recording in (_distinct, _asleep)
        for sentence in of_recording(table[table["checkpoint"] == name], str(name))
    ]


def _distinct(table: pd.DataFrame, name: str) -> list[str]:
    """Return how many experts a number of tokens touch, in the layers with the fewest and the most."""
    measured = with_intervals(rows_of(table, DISTINCT_EXPERTS.name))
    if measured.empty or measured["severity"].max() < 2:
        return []
    size = measured["severity"].max()
    rows = measured[measured["severity"] == size]
    independent, even = (
        of_level[of_level["severity"] == size].set_index("layer")["value"]
        for of_level in (rows_of(table, metric.name) for metric in (INDEPENDENT, EVEN))
    )
    ends = ends_of(
        rows,
        lambda row: (
            f"{row['layer']}, tokens of as many requests {number(independent[row['layer']])}, "
            f"even router {number(even[row['layer']])}"
        ),
    )
    return [f"{name}: {int(size):,} consecutive tokens use {ends} distinct experts."]


def _asleep(table: pd.DataFrame, name: str) -> list[str]:
    """Return how many experts sleep through a request, in the layers with the fewest and the most."""
    rows = rows_of(table, ASLEEP.name)
    if rows.empty:
        return []
    independent = rows_of(table, ASLEEP_INDEPENDENT.name).set_index("layer")["value"]
    ends = ends_of(
        rows, lambda row: f"{row['layer']}, independent tokens {number(independent[row['layer']])}"
    )
    return [f"{name}: a request leaves {ends} experts asleep that other requests use."]
