"""What a table of ``coverage`` says in words."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from moeprobe.metrics.analyses import expert_coverage as coverage
from moeprobe.results.numbers import interval, number

_Row = Mapping[Any, Any]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each recording how many tokens it takes, and which recording covers most with as many."""
    names = list(dict.fromkeys(table["checkpoint"]))
    return [
        *(_of_recording(table[table["checkpoint"] == name], str(name)) for name in names),
        *(_compare_sets(table) if len(names) > 1 else []),
    ]


def _of_recording(table: pd.DataFrame, name: str) -> str:
    totals: dict[str, _Row] = {
        row["metric"]: row for row in table[table["severity"].isna()].to_dict("records")
    }
    needed, even = totals[coverage.TOKENS_NEEDED.name], totals[coverage.TOKENS_NEEDED_EVEN.name]
    num_below = int(totals[coverage.BELOW.name]["value"])
    of_even = f"(an even router needs {int(even['value']):,})"
    subset = (
        f"{int(totals[coverage.SUBSET_REQUESTS.name]['value']):,} of its {int(needed['images']):,} requests with "
        f"{int(totals[coverage.SUBSET_TOKENS.name]['value']):,} tokens"
    )
    if not num_below:
        return (
            f"{name}: every expert has enough after {int(needed['value']):,} tokens "
            f"[{int(needed['ci_low']):,}, {int(needed['ci_high']):,}] {of_even}; {subset} are enough, too."
        )
    curve = table[table["metric"] == coverage.COVERED.name]
    last = curve.loc[curve["severity"].idxmax()]
    experts = "1 expert has" if num_below == 1 else f"{num_below:,} experts have"
    return (
        f"{name}: {experts} too few tokens in all {int(last['severity']):,} {of_even}; {number(last['value'])} of the "
        f"experts have enough, for which {subset} are enough, too."
    )


def _compare_sets(table: pd.DataFrame) -> list[str]:
    """Return what each recording covers with as many tokens as the shortest has, the best one first."""
    curve = table[table["metric"] == coverage.COVERED.name]
    least = min(curve.groupby("checkpoint")["severity"].max())
    rows = curve[curve["severity"] == least].sort_values("value", ascending=False, kind="stable")
    parts = [f"{row['checkpoint']} covers {interval(row)}" for row in rows.to_dict("records")]
    return [
        f"With {int(least):,} tokens each, {', '.join(parts)} of the experts (ranges over random orders)."
    ]
