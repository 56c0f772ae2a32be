"""What a table of ``flips`` says in words."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from moeprobe.metrics.analyses.flip_costs import PREDICTED, R2, SLOPE, SLOPE_CLEAN
from moeprobe.metrics.analyses.flips import FORCED, flip_metric
from moeprobe.results.numbers import between, decimals_of, number


def sentences(table: pd.DataFrame) -> list[str]:
    """Return in which layers flips of patches cannot reach the answer, and whether prices add up to what flips cost."""
    conclusions = []
    for checkpoint, rows in table[table["tokens"] == "patch"].groupby("checkpoint", sort=False):
        layers = [
            str(layer) for layer, of_layer in rows.groupby("layer", sort=False) if is_unreachable(of_layer)
        ]
        if layers:
            conclusions.append(
                f"{checkpoint}: flips of patches in {' and '.join(layers)} cannot reach the answer, so their price is "
                "0."
            )
    return [*conclusions, *_describe_fit(table)]


def is_unreachable(rows: pd.DataFrame) -> bool:
    """Return whether all flips of some rows move nothing at all."""
    names = [flip_metric("size", forced).name for forced in FORCED]
    sizes = rows.loc[rows["metric"].isin(names), "value"].dropna()
    return len(sizes) > 0 and bool((sizes == 0).all())


def _describe_fit(table: pd.DataFrame) -> Iterator[str]:
    """Yield how the predicted costs of each checkpoint fit, where any were predicted."""
    fitted = table[table["metric"].isin([metric.name for metric in (SLOPE, R2, SLOPE_CLEAN)])]
    for checkpoint, rows in fitted.groupby("checkpoint", sort=False):
        slope, r2, on_clean = (
            _value(rows[rows["metric"] == metric.name].iloc[0].to_dict())
            for metric in (SLOPE, R2, SLOPE_CLEAN)
        )
        predicted = table[(table["checkpoint"] == checkpoint) & (table["metric"] == PREDICTED.name)]
        yield (
            f"{checkpoint}: under {len(predicted)} held-out perturbations, flips cost {slope} times what prices of "
            f"single flips add up to (uncentered R² {r2}); the same sets on clean pixels, {on_clean} times."
        )


def _value(row: dict[str, Any]) -> str:
    """Return a value with its interval, or a dash."""
    return f"{number(row['value'], decimals=decimals_of(row))} {between(row)}".rstrip()
