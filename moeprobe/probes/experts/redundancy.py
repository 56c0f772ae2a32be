"""The experts that a layer can do without: rows of a table of ``experts``, and what they say in words.

Of many experts one looks cheap by chance. So there are intervals of the prices that hold for all experts of a
checkpoint at once: t standard errors to either side at Bonferroni's level, and never inside the pointwise interval.

Source: Dunn 1961, "Multiple comparisons among means".
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.judging.selection import Extreme, ends_of
from moeprobe.metrics.analyses.expert_outputs import EXPERT_CKA, EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED
from moeprobe.metrics.analyses.experts import (
    BANNED,
    DISPENSABLE,
    MEASURED_EXPERTS,
    PRICE_BAND,
    PRICE_BEYOND,
    ExpertsAnalysis,
    by_expert,
    intervention_metric,
    sample_of,
)
from moeprobe.metrics.base import Columns, Estimator
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS, Replicates
from moeprobe.metrics.stats.carriers import inputs_needed
from moeprobe.metrics.stats.proportions import CONFIDENCE, critical
from moeprobe.metrics.stats.statistic import standard_error
from moeprobe.probes.experts import all_together
from moeprobe.results import summaries
from moeprobe.results.columns import SIMULTANEOUS
from moeprobe.results.stored import SumsStore
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.tables import WITHOUT_INTERVAL, first_and_last, modality_of_table
from moeprobe.results.values import CellValues, Evaluator

Row = dict[str, Any]
# Experts that a sentence names.
_NAMED = 3
# Nats below which a sentence does not tell upper ends apart.
_FINEST = 1e-4
# A change of the loss in nats that counts as one, where no limit is given.
_CHANGE = 0.01


class _Beyond(ExpertsAnalysis):
    """Shares of inputs whose loss a ban changes by more than a limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return a share for each expert."""
        trials = columns[f"experts_trials_{BANNED}"].astype(np.float64)
        prices = np.abs(columns[intervention_metric("price", BANNED).name].astype(np.float64))
        return [
            PRICE_BEYOND.share_of(price > self._limit * trials, (trials > 0).astype(np.int64), expert=expert)
            for expert, price in by_expert(columns, prices)
        ]


def redundancy_rows(sums: SumsStore, info: summaries.About, *, loss: float | None) -> list[Row]:
    """Return the lines of what banned experts cost, how many inputs they change, and which may go below ``loss``.

    Args:
        sums: of a run of ``experts``.
        info: what all lines of the run share.
        loss: rise of the loss, in nats; None = there are no lines of which may go.
    """
    limit = _CHANGE if loss is None else loss
    evaluate = Evaluator(
        (ExpertsAnalysis(), _Beyond(limit)),
        aligned=True,
        seed=info.seed,
        influences=True,
        unit_of=info.unit_of,
    )
    priced = [cell for cell in sums if cell.cell.layer and not cell.cell.tokens]
    rows: list[Row] = []
    for _, cells_of_one in groupby(priced, lambda cell: cell.checkpoint):
        of_one = list(cells_of_one)
        rows += [row for cell in of_one for row in _sample_row(cell, info)]
        valued = [evaluate(cell) for cell in of_one]
        layers = [_prices(values, info) for values in valued]
        # Those without an interval for their few carriers might have had one with other inputs.
        num_experts = sum(
            bool(price["interval"]) or price["flag"] == FEW_CARRIERS for layer in layers for price, _ in layer
        )
        for values, layer in zip(valued, layers, strict=True):
            band = [_for_all(price, error, num_experts) for price, error in layer]
            rows += [
                *band,
                *_changes(values, info, limit),
                *(_may_go(band, loss) if loss is not None else ()),
            ]
        rows += all_together.rows_of_all(valued, layers, info)
    return rows


def _sample_row(stored: StoredCell, info: summaries.About) -> list[Row]:
    """Return the line on how many of its experts a layer is measured by; none where they are all."""
    _, columns = next(iter(stored.blocks()))
    sample = sample_of(columns)
    if sample is None:
        return []
    number = Replicates(float(sample[0]), np.empty(0), images=stored.num_images, trials=sample[1])
    row = summaries.row(info, stored.checkpoint, stored.cell, NumberName(MEASURED_EXPERTS.name, ""), number)
    return [row | WITHOUT_INTERVAL | {"flag": ""}]


def _changes(values: CellValues, info: summaries.About, limit: float) -> list[Row]:
    """Return the line of each banned expert on how many inputs change by more than the limit."""
    return [
        summaries.row(info, values.checkpoint, values.cell, name, share, not_finite=values.not_finite)
        | {"severity": limit}
        for name, share in values.numbers.items()
        if name.metric == PRICE_BEYOND.name
    ]


def _prices(values: CellValues, info: summaries.About) -> list[tuple[Row, float]]:
    """Return the line of each banned expert of a layer, with the standard error of its price over inputs."""
    banned = intervention_metric("price", BANNED).name
    band = NumberName(PRICE_BAND.name, "")
    return [
        (
            summaries.row(
                info, values.checkpoint, values.cell, band._replace(expert=name.expert), price,
                not_finite=values.not_finite,
            ),
            price.error if price.error is not None else standard_error(values.influences[name], price.images),
        )
        for name, price in values.numbers.items()
        if name.metric == banned and name.expert is not None
    ]  # fmt: skip


def _for_all(row: Row, error: float, num_experts: int) -> Row:
    """Return the line with an interval that holds for so many experts at once, if it has one."""
    if not row["interval"]:
        return row
    reach = error * critical(row["images"], confidence=1 - (1 - CONFIDENCE) / num_experts)
    low, high = min(row["ci_low"], row["value"] - reach), max(row["ci_high"], row["value"] + reach)
    return row | {"ci_low": low, "ci_high": high, "interval": SIMULTANEOUS}


def _may_go(band: Sequence[Row], loss: float) -> list[Row]:
    """Return the lines of which experts of a layer may go, and of their number; no value where no interval is known."""
    lines = [
        row
        | {"metric": DISPENSABLE.name, "severity": loss, "value": float(row["ci_high"] < loss)}
        | ({"value": np.nan} if np.isnan(row["ci_high"]) else {})
        | WITHOUT_INTERVAL
        for row in band
    ]
    values = np.array([line["value"] for line in lines])
    # Experts that are not judged are not counted; where none is, neither is their number known.
    number = np.nan if np.isnan(values).all() else np.nansum(values)
    summary: Row = {"expert": None, "value": float(number), "carriers": None}
    summary |= {} if np.isnan(number) else {"flag": ""}
    return [*lines, *(line | summary for line in lines[:1])]


def dispensable(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each checkpoint, layer and expert what it costs to ban it alone, cheapest first.

    Returns:
        Columns checkpoint, layer, expert, price, and ``highest``: the upper end of the price, of all experts
        of the checkpoint at once in 95 % of samples.
    """
    rows = table[table["metric"] == PRICE_BAND.name].dropna(subset=["ci_high"])
    bounds = rows[["checkpoint", "layer", "expert"]].assign(price=rows["value"], highest=rows["ci_high"])
    order = bounds.groupby(["checkpoint", "layer"], sort=False).ngroup()
    return bounds.assign(order=order).sort_values(["order", "highest"], kind="stable").drop(columns="order")


def nearest_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return each checkpoint's and layer's pair of experts with the nearest outputs, and all metrics of that pair.

    The distance is divided by the distance between permuted patches, as in the figure, since it depends on norms too.

    Returns:
        Columns checkpoint, layer, expert, expert_b, one per metric of the pair, and ``rivals``: what is known of the
        other pairs (``Extreme.clause``).
    """
    metrics = [metric.name for metric in (EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED, EXPERT_CKA)]
    rows = table[table["metric"].isin(metrics)].dropna(subset=["expert"])
    keys = ["checkpoint", "layer", "expert", "expert_b"]
    # Not by ``pivot``, which would sort the layers by their names.
    pairs = rows[rows["metric"] == EXPERT_DISTANCE.name][keys]
    for metric in metrics:
        values = rows[rows["metric"] == metric].set_index(keys)["value"]
        pairs = pairs.join(values.rename(metric), on=keys)
    pairs = pairs.dropna(subset=[EXPERT_DISTANCE.name])
    permuted = pairs[EXPERT_DISTANCE_PERMUTED.name]
    distances = rows[rows["metric"] == EXPERT_DISTANCE.name].loc[pairs.index]
    # Outputs that are the same constant have no distance on permuted patches either.
    relative = distances.assign(
        value=(distances["value"] / permuted).fillna(0),
        **{end: distances[end] / permuted for end in ("ci_low", "ci_high")},
    )
    selections = [
        Extreme.of(of_layer, lowest=True, names=[_pair_name(row) for row in of_layer.to_dict("records")])
        for _, of_layer in relative.groupby(["checkpoint", "layer"], sort=False)
    ]
    nearest = pairs.loc[[selection.row.name for selection in selections]]
    return nearest.assign(rivals=[selection.inserted() for selection in selections])


def _pair_name(row: Mapping[Hashable, Any]) -> str:
    # In a file numbers of experts are texts.
    return " and ".join(str(int(float(row[name]))) for name in ("expert", "expert_b"))


def sentences(table: pd.DataFrame) -> list[str]:
    """Return whether experts differ, for each layer which may go or are missed least, and which two are nearest.

    Of more layers than have panels in a figure the first and the last are named.
    """
    limits = table.loc[table["metric"] == DISPENSABLE.name, "severity"]
    bounds = dispensable(table)
    lines = [*_on_samples(table), *all_together.sentences(table)]
    for (checkpoint, layer), band in _named_layers(table[table["metric"] == PRICE_BAND.name]):
        rows = bounds[(bounds["checkpoint"] == checkpoint) & (bounds["layer"] == layer)]
        noun = all_together.noun_of(table, checkpoint, layer)
        if len(rows):
            words = _cheapest(rows) if limits.empty else _removable(rows, float(limits.iloc[0]))
            lines.append(f"{checkpoint}, {layer}: {words}")
        if words := _not_judged(band, table, noun):
            lines.append(f"{checkpoint}, {layer}: {words}")
    for (checkpoint, layer), rows in _named_layers(nearest_pairs(table)):
        nearest = rows.iloc[0]
        lines.append(
            f"{checkpoint}, {layer}: the outputs of experts {_pair_name(nearest)} are nearest{nearest['rivals']}: "
            f"distance {nearest[EXPERT_DISTANCE.name]:.2f}, with permuted patches "
            f"{nearest[EXPERT_DISTANCE_PERMUTED.name]:.2f}; CKA {nearest[EXPERT_CKA.name]:.2f}, where permuted "
            "patches have 0."
        )
    return lines


def _on_samples(table: pd.DataFrame) -> list[str]:
    """Return how many experts are measured one by one, and what an expert of all is worth; nothing where all are."""
    samples = table[table["metric"] == MEASURED_EXPERTS.name]
    lines = []
    for checkpoint, rows in samples.groupby("checkpoint", sort=False):
        number, total = int(rows["value"].sum()), int(rows["trials"].astype(float).sum())
        modality = modality_of_table(table, data=rows["dataset"].iloc[0])
        lines.append(
            f"{checkpoint}: {number:,} of {total:,} experts are measured one by one, {_span(rows['value'])} of each "
            f"layer, each drawn from experts of similar load. Their intervals are over {modality.units}, and say "
            "nothing of the other experts."
        )
        is_mean = (table["metric"] == intervention_metric("price", BANNED).name) & table["expert"].isna()
        means = table[is_mean & (table["checkpoint"] == checkpoint) & table["value"].notna()]
        if len(means):
            spread = ends_of(means)
            lines.append(
                f"{checkpoint}: without one expert, drawn from all of the layer for each {modality.name}, the loss "
                f"rises by {spread} nats."
            )
    return lines


def _cheapest(rows: pd.DataFrame) -> str:
    """Return which experts of a layer are missed least."""
    untouched = [row for row in rows.itertuples() if row.highest == 0]
    priced = [row for row in rows.itertuples() if row.highest != 0][:_NAMED]
    sentences = []
    if untouched:  # not a bound: other inputs may change
        listing = " or ".join(str(int(float(row.expert))) for row in untouched)
        sentences.append(f"without expert {listing}, the loss of no input changes")
    if priced:
        first, *next_ones = [(int(float(row.expert)), _bound(row.highest)) for row in priced]
        remaining = "".join(f", {expert} by {highest}" for expert, highest in next_ones)
        sentences.append(
            f"without expert {first[0]} the loss rises by at most {first[1]} nats{remaining} (upper ends for all "
            "judged experts at once)"
        )
    return "; ".join(sentences) + "."


def _not_judged(band: pd.DataFrame, table: pd.DataFrame, noun: str) -> str:
    """Return how many experts of a layer have no interval since few inputs carry their price; nothing of none."""
    rows = band[band["flag"] == FEW_CARRIERS] if "flag" in band else band[:0]
    if rows.empty:
        return ""
    modality = modality_of_table(table, data=rows["dataset"].iloc[0])
    units = modality.units
    needed = [inputs_needed(int(row.images), int(row.carriers)) for row in rows.itertuples()]
    of_these = table[table["metric"] == PRICE_BEYOND.name].merge(
        rows[["checkpoint", "layer", "expert"]], on=["checkpoint", "layer", "expert"]
    )
    shares = 100 * of_these["value"].astype(float)
    limit = float(of_these["severity"].iloc[0])
    verb, owner, bans = (
        ("is", "its", "Its ban changes") if len(rows) == 1 else ("are", "their", "Their bans change")
    )
    return (
        f"{len(rows)} of {len(band)} {noun} {verb} not judged, since few {units} carry the price of {owner} ban "
        f"({_span(rows['carriers'].astype(int))} of {int(rows['images'].max()):,}; 10 make an interval). "
        f"{bans} {_span(shares.round(1))} % of the {modality.plural} by more than {limit:g} nats. "
        f"By a rough estimate, {_span(map(_round_to_two_digits, needed))} {units} would be enough."
    )


def _span(values: Iterable[float]) -> str:
    """Return the least and the largest of some numbers, or the one that all are."""
    ordered = sorted(values)
    low, high = (f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def _round_to_two_digits(count: int) -> float:
    """Return a count with two digits."""
    return float(f"{count:.2g}")


def _bound(highest: float) -> str:
    """Return an upper end in words; one that is nearly 0 is rounded up."""
    return f"{_FINEST if 0 < highest < _FINEST else highest:.2g}"


def _removable(rows: pd.DataFrame, loss: float) -> str:
    """Return which experts of a layer may go at a lower loss."""
    removable = sorted(int(float(expert)) for expert in rows.loc[rows["highest"] < loss, "expert"])
    if not removable:
        least = rows.iloc[0]
        return (
            f"none of the {len(rows)} judged experts may go at a loss below {loss:g} nats; the lowest upper end is "
            f"{least['highest']:.2g}, of expert {int(float(least['expert']))}."
        )
    return (
        f"{len(removable)} of {len(rows)} judged experts may go, each alone, at a loss below {loss:g} nats "
        f"(95 % for all at once): {'expert' if len(removable) == 1 else 'experts'} {_ranges(removable)}."
    )


def _ranges(numbers: Iterable[int]) -> str:
    """Return rising whole numbers, neighbors of three or more as ranges: 0, 3–5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _named_layers(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Yield the rows of each checkpoint and layer that is named."""
    for checkpoint, of_one in rows.groupby("checkpoint", sort=False):
        layers = list(dict.fromkeys(of_one["layer"]))
        for layer in first_and_last(layers):
            yield (str(checkpoint), layer), of_one[of_one["layer"] == layer]
