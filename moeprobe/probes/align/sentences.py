"""What a table of ``align`` says in words."""

import pandas as pd

from moeprobe.metrics import alignment
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.results.layouts.aligned import is_difference
from moeprobe.results.numbers import interval, number


def sentences(table: pd.DataFrame) -> list[str]:
    """Return which share of routing data determine, then which pairs align no better than unrelated inputs."""
    return [*_shares(table), *_unrelated(table)]


def _shares(table: pd.DataFrame) -> list[str]:
    shares = table[table["metric"].isin([metric.name for metric in alignment.measures])]
    lines = []
    for (name, layer), rows in shares.groupby(["checkpoint", "layer"], sort=False):
        by_metric = {row["metric"]: row for row in rows.to_dict("records")}
        data = by_metric.get(alignment.SHARE_DATA.name)
        if data is None or data["value"] != data["value"]:
            continue
        if is_difference(name):
            lines.append(
                f"{name}, {layer}: the share that data determine differs by {interval(data, signed=True)}."
            )
            continue
        position = by_metric.get(alignment.SHARE_POSITION.name)
        by_position = "" if position is None else f" ({number(position['value'])} of it by position alone)"
        lines.append(
            f"{name}, {layer}: data determine {interval(data)} of the routing{by_position}; the rest goes with the "
            "seed."
        )
    return lines


def _unrelated(table: pd.DataFrame) -> list[str]:
    rows = table[table["metric"] == alignment.FITTED_P.name]
    by_chance = rows[rows["value"] > 1 - CONFIDENCE]
    return [
        f"{row['checkpoint']}, {row['layer']}: the best alignment is no better than of unrelated inputs "
        f"(p {number(row['value'])})."
        for row in by_chance.to_dict("records")
    ]
