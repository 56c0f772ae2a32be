"""What a table of ``trace balance`` says in words."""

from collections.abc import Sequence

import pandas as pd

from moeprobe.inputs.modality import TOKEN_KINDS, tokens_of_kind
from moeprobe.judging.selection import Extreme
from moeprobe.metrics.analyses.hot_experts import (
    HOT_NEXT_SHARE,
    HOT_OVERLAP,
    HOT_OVERLAP_SHUFFLED,
    LOAD_CHANGE,
)
from moeprobe.metrics.analyses.rank_load import RANK_IMBALANCE, RANK_SHARE, WINDOW_IMBALANCE
from moeprobe.metrics.declaration import CHANCE
from moeprobe.metrics.relabeled_ranks import OF_RANKS, OF_WINDOWS, RelabeledMetrics
from moeprobe.metrics.watched_load import (
    BATCH_CORRELATION,
    CHANGED_SINCE,
    FIRST_CHANGED,
    RECENT_CHANGE,
    USUAL_CHANGE,
    USUAL_SHARE,
)
from moeprobe.recorded.trace_balance import course
from moeprobe.results.layouts.load_over_time import placements
from moeprobe.results.numbers import interval, number
from moeprobe.results.tables import of_all_tokens

# The level of the test against relabeled experts.
_LEVEL = 0.05
# Layers that a sentence names.
_MOST_LAYERS = 5
# The correlation of batches up to which simulated intervals held (tests/metrics/stats/test_always_valid.py).
_MOST_ALIKE = 0.3


def rows_of(table: pd.DataFrame, metric: str, **wanted: str) -> pd.DataFrame:
    """Return the rows of a number over all windows that have a value."""
    rows = table[(table["metric"] == metric) & table["value"].notna() & table["severity"].isna()]
    for column, content in wanted.items():
        rows = rows[rows[column] == content]
    return rows


def sentences(table: pd.DataFrame) -> list[str]:
    """Return whether hot experts stay hot, how uneven ranks are, and what a greedy placement would give.

    What was watched batch by batch comes first.
    """
    all_tokens = of_all_tokens(table)
    return [
        *_load_changes(all_tokens), *_persistence(all_tokens), *_ranks(all_tokens), *_ranks_by_kind(table)
    ]  # fmt: skip


def _load_changes(table: pd.DataFrame) -> list[str]:
    """Return whether the load has moved since the baseline, over all layers and in which of them."""
    changes = rows_of(table, USUAL_CHANGE.name)
    if changes.empty:
        return []
    together = changes[changes["layer"] == ""].iloc[0]
    usual = number(_number(table, USUAL_SHARE.name))
    first = rows_of(table, FIRST_CHANGED.name).set_index("layer")["value"]
    count = int(table.loc[table["metric"] == USUAL_CHANGE.name, "severity"].max())
    since = f"in {count:,} batches since the baseline"
    if "" in first:
        recent = rows_of(table, RECENT_CHANGE.name, layer="").iloc[0]
        start = int(_number(table, CHANGED_SINCE.name))
        where = "in all of them" if start == 1 else f"from batch {start:,} on"
        begin = (
            f"The load has moved {since}: the usual hot experts had {usual} of the choices of all layers, and "
            f"it changed by {interval(recent, signed=True)} {where}. Batch {first['']:.0f} was the first to show it."
        )
    else:
        begin = (
            f"Nothing shows that the load has moved {since}: the usual hot experts had {usual} of the choices of all "
            f"layers, which changed by {interval(together, signed=True)}."
        )
    sentences = [f"{begin} Intervals hold after every batch at once, however often you look."]
    layers = first.drop("", errors="ignore").sort_values(kind="stable")
    if len(layers):
        layer_names = ", ".join(
            f"{layer} (after {batch:.0f})" for layer, batch in layers.head(_MOST_LAYERS).items()
        )
        remaining = f" and {len(layers) - _MOST_LAYERS} more" if len(layers) > _MOST_LAYERS else ""
        sentences.append(
            f"Layers that changed, with intervals for all layers at once: {layer_names}{remaining}."
        )
    # Over all layers: the largest of many layers is large by chance.
    correlation = rows_of(table, BATCH_CORRELATION.name, layer="")["value"].max()
    if correlation > _MOST_ALIKE:
        sentences.append(
            f"Batches that follow one another are alike (correlation {number(correlation)}, and these intervals hold "
            f"up to about {_MOST_ALIKE:g}): take larger batches."
        )
    return sentences


def _persistence(table: pd.DataFrame) -> list[str]:
    overlaps = rows_of(table, HOT_OVERLAP.name)
    if overlaps.empty:
        return []
    conclusions = []
    for where, row, layers in _extremes(overlaps):
        chance, shuffled, share, even = (
            _span(rows_of(table, name), layers)
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
    return [*conclusions, *course.sentences(table), *_change(table)]


def _extremes(rows: pd.DataFrame) -> list[tuple[str, pd.Series, list[str]]]:
    """Return the layers with the largest and the smallest value, in words and by name; one line where all are equal.

    Its interval then reaches over those of all layers.
    """
    highest, lowest = (Extreme.of(rows, lowest=is_lowest) for is_lowest in (False, True))
    if highest.row["value"] == lowest.row["value"]:
        ends = {"ci_low": rows["ci_low"].min(), "ci_high": rows["ci_high"].max()}
        where = highest.row["layer"] if len(rows) == 1 else f"each of {len(rows)} layers"
        return [(where, pd.Series({**highest.row, **ends}), rows["layer"].tolist())]
    return [
        (f"{end.row['layer']}, the {which}{end.appended()}", end.row, [end.row["layer"]])
        for end, which in ((highest, "most stable layer"), (lowest, "least stable"))
    ]


def _span(rows: pd.DataFrame, layers: Sequence[str]) -> str:
    """Return the values of some layers in words: from the smallest to the largest, where they differ."""
    values = rows.loc[rows["layer"].isin(layers), "value"]
    ends = dict.fromkeys(map(number, (values.min(), values.max())))
    return " to ".join(ends)


def _change(table: pd.DataFrame) -> list[str]:
    """Return in which layer most of the load moves, where all layers together show that some does."""
    if not course.is_shown(table):
        return []
    largest = Extreme.of(rows_of(table, LOAD_CHANGE.name), lowest=False)
    return [
        f"The load moves most in {largest.row['layer']}{largest.inserted()}: {interval(largest.row)} of the choices "
        "go to other experts from window to window."
    ]


def _ranks(table: pd.DataFrame) -> list[str]:
    rows = rows_of(table, RANK_IMBALANCE.name, layer="")
    if rows.empty:
        return []
    first, *halves = (rows[rows["view"] == view].iloc[0] for view in placements(rows))
    of_first = table[table["view"] == first["view"]]
    conclusions = [
        f"With the {first['view']} placement the busiest rank has {interval(first)} times the mean load, over all "
        f"layers: {_against(of_first, OF_RANKS)}."
    ]
    within = rows_of(of_first, WINDOW_IMBALANCE.name, layer="")
    if len(within):
        conclusions.append(
            f"Within windows it has {interval(within.iloc[0])} times the mean: {_against(of_first, OF_WINDOWS)}."
        )
    if halves:
        conclusions.append(_meaning(_number(of_first, OF_RANKS.p.name)))
    else:
        conclusions.append("It is one input, so nothing says whether the same experts stay hot.")
    of_layers = rows_of(of_first, RANK_IMBALANCE.name)
    of_layers = of_layers[of_layers["layer"] != ""]
    if len(of_layers) > 1:
        worst = of_layers.loc[of_layers["value"].idxmax()]
        shares = rows_of(of_first, RANK_SHARE.name, layer=worst["layer"])
        rank = int(shares.loc[shares["value"].idxmax(), "expert"])
        conclusions.append(
            f"Most uneven is {worst['layer']}, of {len(of_layers)} layers: rank {rank} has {interval(worst)} times the "
            "mean. A largest value has no interval, so nothing says whether other layers are as uneven."
        )
    if halves:
        second, best = halves
        conclusions.append(
            f"A greedy placement, made on the first half of the requests, comes to {interval(best)} on the second "
            f"half. The {first['view']} one has {interval(second)} there."
        )
    return conclusions


def _ranks_by_kind(table: pd.DataFrame) -> list[str]:
    """Return how uneven ranks are for the tokens of each kind, where some are of pictures."""
    rows = rows_of(table, RANK_IMBALANCE.name, layer="")
    rows = rows[rows["tokens"].isin(TOKEN_KINDS)]
    if rows.empty:
        return []
    parts = [f"{interval(row)} for {tokens_of_kind(row['tokens'])}" for row in rows.to_dict("records")]
    return [f"Kind by kind, the busiest rank has these multiples of the mean: {', '.join(parts)}."]


def _against(table: pd.DataFrame, metrics: RelabeledMetrics) -> str:
    """Return how an imbalance over all layers compares with relabeled experts."""
    ratio, p = (_number(table, metric.name) for metric in (metrics.ratio, metrics.p))
    return f"{number(ratio)} times as much as with experts relabeled within each request (p = {number(p)})"


def _meaning(p: float) -> str:
    """Return what the comparison says of the experts, by its p."""
    if p <= _LEVEL:
        return "So the same experts are hot in many requests, and another placement may spread them."
    return "Requests whose hot experts differ at random are as uneven, so no expert is known to stay hot."


def _number(table: pd.DataFrame, metric: str) -> float:
    return float(rows_of(table, metric, layer="")["value"].iloc[0])
