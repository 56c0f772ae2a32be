"""What a table of ``trace batches`` says in words."""

from collections.abc import Callable

import pandas as pd

from moeprobe.inputs.modality import TEXT
from moeprobe.judging.selection import extremes_of
from moeprobe.metrics.analyses.asleep import ASLEEP
from moeprobe.metrics.analyses.asleep import INDEPENDENT as ASLEEP_INDEPENDENT
from moeprobe.metrics.analyses.distinct_experts import DISTINCT_EXPERTS, EVEN, INDEPENDENT
from moeprobe.results.numbers import interval, number


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
    size = int(measured["severity"].max())
    independent, even = (
        of_level[of_level["severity"] == size].set_index("layer")["value"]
        for of_level in (rows_of(table, metric.name) for metric in (INDEPENDENT, EVEN))
    )
    ends = _describe_ends(
        measured[measured["severity"] == size],
        f"{size:,} consecutive tokens use {{}} distinct experts",
        lambda layer: (
            f"As many tokens of different requests would use {number(independent[layer])}; an even router would use "
            f"{number(even[layer])}."
        ),
    )
    return [f"{name}: {ends}"]


def _asleep(table: pd.DataFrame, name: str) -> list[str]:
    """Return how many experts sleep through a request, in the layers with the fewest and the most."""
    rows = rows_of(table, ASLEEP.name)
    if rows.empty:
        return []
    independent = rows_of(table, ASLEEP_INDEPENDENT.name).set_index("layer")
    ends = _describe_ends(
        rows,
        "a request leaves {} experts asleep",
        lambda layer: f"Independent tokens would leave {interval(independent.loc[layer])}.",
    )
    # An expert is asleep only where other requests use it, so without any there is nothing to say.
    closing = " Other requests use the experts that are asleep." if rows["value"].max() > 0 else ""
    return [f"{name}: {ends}{closing}"]


def _describe_ends(rows: pd.DataFrame, subject: str, levels: Callable[[str], str]) -> str:
    """Return the layers with the fewest and the most experts; the number of one layer alone.

    Args:
        rows: one for each layer.
        subject: the beginning of the sentence, with a place for how many.
        levels: returns the sentence on the levels of a layer.
    """
    ends = extremes_of(rows)
    layers = [str(end.row["layer"]) for end in ends]
    if len(ends) == 1:
        beginning = subject.format(interval(ends[0].row))
        return f"{beginning} in {layers[0]}{ends[0].appended()}. {levels(layers[0])}"
    beginnings = (subject.format("the fewest"), "The most are")
    return " ".join(
        f"{beginning} in {layer}: {interval(end.row)}{end.appended()}. {levels(layer)}"
        for beginning, layer, end in zip(beginnings, layers, ends, strict=True)
    )
