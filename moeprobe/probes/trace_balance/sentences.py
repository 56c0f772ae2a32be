"""What a table of ``trace balance`` says in words."""

import pandas as pd

from moeprobe.metrics.analyses.hot_experts import (
    HOT_NEXT_SHARE,
    HOT_OVERLAP,
    HOT_OVERLAP_SHUFFLED,
    LOAD_CHANGE,
    LOAD_CHANGE_SHUFFLED,
)
from moeprobe.metrics.analyses.rank_load import (
    RANK_IMBALANCE,
    RANK_IMBALANCE_EVEN,
    RANK_SHARE,
    WINDOW_IMBALANCE,
    WINDOW_IMBALANCE_EVEN,
)
from moeprobe.metrics.declaration import CHANCE
from moeprobe.results.layouts.load_over_time import placements
from moeprobe.results.numbers import interval, number


def rows_of(table: pd.DataFrame, metric: str, **wanted: str) -> pd.DataFrame:
    """Return the rows of a number over all windows that have a value."""
    rows = table[(table["metric"] == metric) & table["value"].notna() & table["severity"].isna()]
    for column, content in wanted.items():
        rows = rows[rows[column] == content]
    return rows


def sentences(table: pd.DataFrame) -> list[str]:
    """Return whether hot experts stay hot, how uneven ranks are, and what a greedy placement would give."""
    return [*_persistence(table), *_ranks(table)]


def _persistence(table: pd.DataFrame) -> list[str]:
    overlaps = rows_of(table, HOT_OVERLAP.name)
    if overlaps.empty:
        return []
    conclusions = []
    for where, row in _extremes(overlaps):
        chance, shuffled, share, even = (
            number(rows_of(table, name, layer=row["layer"])["value"].iloc[0])
            for name in (
                f"{HOT_OVERLAP.name}{CHANCE}",
                HOT_OVERLAP_SHUFFLED.name,
                HOT_NEXT_SHARE.name,
                f"{HOT_NEXT_SHARE.name}{CHANCE}",
            )
        )
        conclusions.append(
            f"Hot experts of one window and the next overlap by {interval(row)} in {where} (chance {chance}, with "
            f"shuffled requests {shuffled}). They get {share} of the next window's choices (chance {even})."
        )
    return [*conclusions, *_change(table)]


def _extremes(rows: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """Return the layers with the largest and the smallest value, in words; one where all are equal."""
    highest, lowest = rows.loc[rows["value"].idxmax()], rows.loc[rows["value"].idxmin()]
    if highest["value"] == lowest["value"]:
        return [(highest["layer"] if len(rows) == 1 else f"each of {len(rows)} layers", highest)]
    return [
        (f"{highest['layer']}, the most stable layer", highest),
        (f"{lowest['layer']}, the least stable", lowest),
    ]


def _change(table: pd.DataFrame) -> list[str]:
    """Return in how many layers the load changes with time, where shuffles say so."""
    highest = rows_of(table, LOAD_CHANGE_SHUFFLED.name).set_index("layer")["ci_high"].dropna()
    changes = rows_of(table, LOAD_CHANGE.name).set_index("layer")["value"]
    tested = changes.index.intersection(highest.index)
    if tested.empty:
        return []
    beyond = changes[tested][changes[tested] > highest[tested]]
    if beyond.empty:
        return [f"In none of {len(tested)} layers does the load change more than in 97.5 % of shuffles."]
    largest = rows_of(table, LOAD_CHANGE.name, layer=beyond.idxmax()).iloc[0]
    return [
        f"In {len(beyond)} of {len(tested)} layers the load changes more than in 97.5 % of shuffles, most in "
        f"{largest['layer']}: {interval(largest)} of the choices move to other experts from window to window."
    ]


def _ranks(table: pd.DataFrame) -> list[str]:
    rows = rows_of(table, RANK_IMBALANCE.name, layer="")
    if rows.empty:
        return []
    first, second, best = (rows[rows["view"] == view].iloc[0] for view in placements(rows))
    even, within, within_even = (
        rows_of(table, metric.name, layer="", view=first["view"])
        for metric in (RANK_IMBALANCE_EVEN, WINDOW_IMBALANCE, WINDOW_IMBALANCE_EVEN)
    )
    conclusions = [
        f"With the {first['view']} placement the busiest rank has {interval(first)} times the mean load, over all "
        f"layers (an even router: {number(even['value'].iloc[0])})."
    ]
    if len(within):
        conclusions.append(
            f"Within windows it has {interval(within.iloc[0])} times the mean (an even router: "
            f"{number(within_even['value'].iloc[0])})."
        )
    of_layers = rows_of(table, RANK_IMBALANCE.name, view=first["view"])
    of_layers = of_layers[of_layers["layer"] != ""]
    if len(of_layers) > 1:
        worst = of_layers.loc[of_layers["value"].idxmax()]
        shares = rows_of(table, RANK_SHARE.name, view=first["view"], layer=worst["layer"])
        rank = int(shares.loc[shares["value"].idxmax(), "expert"])
        conclusions.append(
            f"Most uneven is {worst['layer']}: rank {rank} has {interval(worst)} times the mean."
        )
    conclusions.append(
        f"A greedy placement, made on the first half of the requests, comes to {interval(best)} on the second half. "
        f"The {first['view']} one has {interval(second)} there."
    )
    return conclusions
