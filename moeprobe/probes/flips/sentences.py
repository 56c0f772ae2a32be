"""What a table of ``flips`` says in words."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of_row
from moeprobe.metrics.analyses.flip_costs import PREDICTED, R2, SLOPE, SLOPE_CLEAN
from moeprobe.metrics.analyses.flips import BEYOND, FORCED, flip_metric
from moeprobe.metrics.analyses.text_flips import text_flip_metric
from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS
from moeprobe.metrics.stats.carriers import inputs_needed
from moeprobe.results.numbers import between, decimals_of, number
from moeprobe.results.tables import first_and_last

# The price that leads, of images and of texts, and the share of flips that stands for it where it has no interval.
_PRICES = {
    flip_metric("price", "runner_up").name: flip_metric("beyond", "runner_up").name,
    text_flip_metric("next", "runner_up").name: text_flip_metric("next_beyond", "runner_up").name,
}


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
    return [*conclusions, *_carried_prices(table), *_describe_fit(table)]


def _carried_prices(table: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per checkpoint and layer whose price few inputs carry; of many layers, two."""
    for metric, beyond in _PRICES.items():
        rows = table[(table["metric"] == metric) & table["tokens"].isin(ORDINARY)]
        for checkpoint, of_one in rows.groupby("checkpoint", sort=False):
            named = of_one[of_one["layer"].isin(first_and_last(list(dict.fromkeys(of_one["layer"]))))]
            for row in named[named["flag"] == FEW_CARRIERS].to_dict("records"):
                units = modality_of_row(row).units
                needed = float(f"{inputs_needed(int(row['images']), int(row['carriers'])):.2g}")
                keys = ["checkpoint", "layer", "tokens"]
                is_same = (table[keys] == pd.Series({key: row[key] for key in keys})).all(axis=1)
                moved = table[is_same & (table["metric"] == beyond)].iloc[0].to_dict()
                yield (
                    f"{checkpoint}, {row['layer']}: half of the price of a flip is carried by {int(row['carriers'])} "
                    f"of {row['images']:,} {units}, so it has no interval. {_percent(moved)} of the flips "
                    f"move the log-probability by more than {BEYOND:g} nats. By a rough estimate, "
                    f"{needed:,.0f} {units} would be enough."
                )


def _percent(row: dict[str, Any]) -> str:
    """Return a share in percent, with its interval."""
    ends = "" if pd.isna(row["ci_low"]) else f" [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]"
    return f"{100 * row['value']:.1f} %{ends}"


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
