"""The bans of all experts of a checkpoint together: do prices differ, which experts are missed, what is each worth?

Intervals that hold for hundreds of experts at once may exclude nothing although experts clearly differ. These numbers
stand beside them (``metrics.stats.many``). Experts without an interval are left out: few inputs carry their prices.

Axes: m experts of a layer, n inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from moeprobe.metrics.analyses.experts import (
    BANNED,
    MEASURED_EXPERTS,
    MISSED_RATE,
    PRICE_AMONG,
    PRICES_DIFFER,
    intervention_metric,
)
from moeprobe.metrics.stats.many import RATE, ExpertsTest, false_discovery, shrink
from moeprobe.results.numbers import number
from moeprobe.results.summaries import About
from moeprobe.results.tables import WITHOUT_INTERVAL
from moeprobe.results.values import CellValues

Row = dict[str, Any]
# What the column ``layer`` says of all layers together.
_ALL = "all"


def rows_of_all(
    valued: Sequence[CellValues], layers: Sequence[Sequence[tuple[Row, float]]], info: About
) -> list[Row]:
    """Return the lines of one checkpoint: prices among all, rates of discovery, and the p of each layer and of all.

    None with a single judged expert, or where influences of single experts are not kept, as of many inputs.

    Args:
        valued: the layers.
        layers: of each the line and the standard error of each banned expert.
        info: what all lines share.
    """
    judged = [[(row, error) for row, error in layer if row["interval"] and error > 0] for layer in layers]
    lines, tested = list[Row](), list[tuple[Row, float]]()
    test: ExpertsTest | None = None
    num_layers = 0
    for values, layer in zip(valued, judged, strict=True):
        influences = _influences(values, [row["expert"] for row, _ in layer])
        if influences is None or len(layer) < 2:
            continue
        prices = np.array([row["value"] for row, _ in layer])
        test = test or ExpertsTest(len(influences), seed=info.seed)
        p = test.add(prices, influences)
        first, num_layers = layer[0][0], num_layers + 1
        lines += [
            row | WITHOUT_INTERVAL | {"metric": PRICE_AMONG.name, "value": float(price)}
            for (row, _), price in zip(layer, shrink(prices, influences), strict=True)
        ]
        lines.append(_line(first, PRICES_DIFFER.name, p, len(layer)))
        tested += layer
    if test is None:
        return []
    if num_layers > 1:
        lines.append(_line(tested[0][0] | {"layer": _ALL}, PRICES_DIFFER.name, test.p, len(tested)))
    # One-sided: an expert is missed if its ban raises the loss.
    p_values = [special.stdtr(row["images"] - 1, -row["value"] / error) for row, error in tested]
    rates = false_discovery(np.array(p_values))
    lines += [
        row | WITHOUT_INTERVAL | {"metric": MISSED_RATE.name, "value": float(rate)}
        for (row, _), rate in zip(tested, rates, strict=True)
    ]
    return lines


def _influences(values: CellValues, experts: Sequence[int]) -> Any:
    """Return the influences ``(n, m)`` on the prices of experts; None where they are not kept."""
    banned = intervention_metric("price", BANNED).name
    by_expert = {
        name.expert: influence for name, influence in values.influences.items() if name.metric == banned
    }
    if not experts or not set(experts) <= by_expert.keys():
        return None
    return np.stack([by_expert[expert] for expert in experts], axis=1)


def _line(row: Row, metric: str, value: float, experts: int) -> Row:
    """Return the line of a number about several experts, whose trials are the experts."""
    empty = {"expert": None, "carriers": None, "flag": ""}
    return row | WITHOUT_INTERVAL | empty | {"metric": metric, "value": value, "trials": experts}


def noun_of(table: pd.DataFrame, checkpoint: Any, layer: Any = None) -> str:
    """Return what sentences call the banned experts of a layer, or of all: not all experts may be measured."""
    rows = table[(table["metric"] == MEASURED_EXPERTS.name) & (table["checkpoint"] == checkpoint)]
    rows = rows if layer is None else rows[rows["layer"] == layer]
    return "experts" if rows.empty else "measured experts"


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each checkpoint whether the prices of its experts differ, and how many experts are missed."""
    lines = []
    tests = table[table["metric"] == PRICES_DIFFER.name]
    for checkpoint, rows in tests.groupby("checkpoint", sort=False):
        together = rows[rows["layer"] == _ALL]
        row = (together if len(together) else rows).iloc[0].to_dict()
        rates = table[(table["metric"] == MISSED_RATE.name) & (table["checkpoint"] == checkpoint)]["value"]
        words = _differ(row, noun_of(table, checkpoint))
        lines.append(f"{checkpoint}: {words}; {_count_missed(rates.astype(float))}.")
    return lines


def _differ(row: Mapping[Any, Any], noun: str) -> str:
    experts = f"{int(row['trials']):,} {noun}{'' if row['layer'] == _ALL else ' of ' + str(row['layer'])}"
    p = f"p = {number(row['value'])}"
    if row["value"] > RATE:
        return f"the prices of {experts} show no significant difference ({p}, all at once)"
    return f"the prices of {experts} differ from one another within their layers ({p}, all at once)"


def _count_missed(rates: pd.Series) -> str:
    discoveries = int((rates <= RATE).sum())
    return f"{discoveries:,} of {len(rates):,} are missed, at a false discovery rate of {RATE:.0%}"
