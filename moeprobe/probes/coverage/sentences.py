"""What a table of ``coverage`` or ``trace coverage`` says in words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import Modality
from moeprobe.metrics.analyses import expert_coverage as coverage
from moeprobe.results.layouts.expert_coverage import by_source, modality_of_coverage
from moeprobe.results.numbers import interval, number

_Row = Mapping[Any, Any]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return how many tokens each source takes, and which of several covers most with as many."""
    sources, modality = by_source(table), modality_of_coverage(table)
    return [
        *(_of_source(rows, name, modality) for name, rows in sources.items()),
        *(_compare(sources, modality) if len(sources) > 1 else []),
    ]


def _of_source(rows: pd.DataFrame, name: str, modality: Modality) -> str:
    totals: dict[str, _Row] = {row["metric"]: row for row in rows[rows["severity"].isna()].to_dict("records")}
    needed, even = totals[coverage.TOKENS_NEEDED.name], totals[coverage.TOKENS_NEEDED_EVEN.name]
    inputs, of_subset = totals[coverage.INPUTS_NEEDED.name], totals[coverage.SUBSET_INPUTS.name]
    units = replace(modality, sampled=needed.get("unit") or "")
    num_below = int(totals[coverage.BELOW.name]["value"])
    of_even = f"(an even router needs {int(even['value']):,})"
    subset = (
        f"{int(of_subset['value']):,} of its {modality.format_count(int(of_subset['trials']))} with "
        f"{int(totals[coverage.SUBSET_TOKENS.name]['value']):,} {modality.tokens}"
    )
    if not num_below:
        return (
            f"{name}: every expert has enough after {int(needed['value']):,} {modality.tokens} "
            f"[{int(needed['ci_low']):,}, {int(needed['ci_high']):,}] {of_even}, or "
            f"{units.format_count(int(inputs['value']))}; {subset} are enough, too."
        )
    curve = rows[rows["metric"] == coverage.COVERED.name]
    last = curve.loc[curve["severity"].idxmax()]
    experts = "1 expert has" if num_below == 1 else f"{num_below:,} experts have"
    if last["value"] == 0:
        # No input is enough for an expert, so there is no subset.
        return f"{name}: all {experts} too few {modality.tokens} in all {int(last['severity']):,} {of_even}."
    return (
        f"{name}: {experts} too few {modality.tokens} in all {int(last['severity']):,} {of_even}; "
        f"{number(last['value'])} of the experts have enough, for which {subset} are enough, too."
    )


def _compare(sources: Mapping[str, pd.DataFrame], modality: Modality) -> list[str]:
    """Return what each source covers with as many tokens as the smallest has, the best one first."""
    curves = {name: rows[rows["metric"] == coverage.COVERED.name] for name, rows in sources.items()}
    least = min(curve["severity"].max() for curve in curves.values())
    at_least = {name: curve[curve["severity"] == least].iloc[0].to_dict() for name, curve in curves.items()}
    ordered = sorted(at_least.items(), key=lambda of_one: -of_one[1]["value"])
    # With all of its tokens a source covers the same in every order.
    varies = any(row["ci_low"] < row["ci_high"] for row in at_least.values())
    parts = [f"{name} covers {interval(row) if varies else number(row['value'])}" for name, row in ordered]
    ranges = " (ranges over random orders)" if varies else ""
    return [f"With {int(least):,} {modality.tokens} each, {'; '.join(parts)} of the experts{ranges}."]
