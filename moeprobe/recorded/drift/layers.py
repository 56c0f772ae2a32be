"""How far the layers moved, judged together: do they differ, which stand apart, and by how much?

One of many layers moved most, by chance too. So one test asks of all together before single layers are named
(``metrics.stats.many``).

Axes: n inputs (or units), L layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from moeprobe.metrics.drifted_layers import LAYER_AMONG, LAYER_RATE, LAYERS_DIFFER
from moeprobe.metrics.stats.linearized import LARGEST
from moeprobe.metrics.stats.many import RATE, ExpertsTest, false_discovery, shrink
from moeprobe.metrics.stats.statistic import Array, divide
from moeprobe.results.numbers import end
from moeprobe.results.tables import WITHOUT_INTERVAL

# What the column ``layer`` says of all layers together.
_ALL = "all"


def rows_of_layers(
    rows: Sequence[Mapping[str, Any]], influences: Mapping[str, Array], *, seed: int
) -> list[dict[str, Any]]:
    """Return the lines on all layers: the p of no difference, then of each layer its κ among all and its rate.

    None of a single layer, and of more inputs than are resampled.

    Args:
        rows: the line of the κ of each layer.
        influences: of the inputs on it ``(n,)``, by layer.
        seed: of the resamples.
    """
    judged = [row for row in rows if row["interval"] and row["layer"] in influences]
    if len(judged) < 2:
        return []
    kappas = np.array([row["value"] for row in judged])
    columns = np.stack([influences[row["layer"]] for row in judged], axis=1)
    n = len(columns)
    if n > LARGEST:
        return []
    test = ExpertsTest(n, seed=seed)
    p = test.add(kappas, columns)
    centered = columns - columns.mean(1, keepdims=True)
    errors = np.sqrt(n / (n - 1) * np.square(centered).sum(0))
    # By how many errors each layer is from the mean of all of them.
    t = divide(np.abs(kappas - kappas.mean()), errors, empty=np.nan)
    rates = false_discovery(2 * special.stdtr(n - 1, -t))
    lines = [_line({**judged[0], "layer": _ALL}, LAYERS_DIFFER.name, p)]
    for metric, values in ((LAYER_AMONG.name, shrink(kappas, columns)), (LAYER_RATE.name, rates)):
        lines += [
            _line(row, metric, float(value))
            for row, value in zip(judged, values, strict=True)
            if value == value
        ]
    return lines


def _line(row: Mapping[str, Any], metric: str, value: float) -> dict[str, Any]:
    return {**row, **WITHOUT_INTERVAL, "flag": "", "metric": metric, "null": "", "value": value}


def sentence(table: pd.DataFrame) -> str:
    """Return whether the layers differ, and how many are apart from their mean; empty where it was not tested."""
    tests = table[table["metric"] == LAYERS_DIFFER.name]
    if tests.empty:
        return ""
    rates = table.loc[table["metric"] == LAYER_RATE.name, "value"]
    p = f"p = {end(tests['value'].iloc[0])}, all {len(rates)} at once"
    if tests["value"].iloc[0] > RATE:
        return f"Nothing shows that layers differ in how far they moved ({p})."
    return (
        f"Layers differ in how far they moved ({p}); {int((rates <= RATE).sum())} of {len(rates)} moved more or less "
        f"than their mean, at a false discovery rate of {RATE:.0%}."
    )
