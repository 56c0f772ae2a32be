"""What a table of ``corruptions`` says: which corruption moves routing most, and how much of it is movement."""

import pandas as pd

from moeprobe.inputs.corruptions import CONTROL, MOVING, NAMES
from moeprobe.results.layouts.means import agreement_rows
from moeprobe.results.numbers import interval


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each checkpoint the corruptions of the least and of the highest κ, then what its controls reach."""
    rows = agreement_rows(table)
    rows = rows[rows["value"].notna()]
    lines = []
    for checkpoint, of_checkpoint in rows.groupby("checkpoint", sort=False):
        first = of_checkpoint[of_checkpoint["layer"] == of_checkpoint["layer"].iloc[0]]
        by_view = {row["view"]: row for row in first.to_dict("records")}
        kinds = sorted((view for view in by_view if view in NAMES), key=lambda view: by_view[view]["value"])
        if len(kinds) > 1:
            ends = [f"{kind} {interval(by_view[kind])}" for kind in (kinds[0], kinds[-1])]
            layer = first["layer"].iloc[0]
            lines.append(f"{checkpoint}, κ in {layer}: lowest under {ends[0]}, highest under {ends[1]}.")
        controls = [
            f"{kind} {interval(by_view[kind])}, control {interval(by_view[kind + CONTROL])}"
            for kind in MOVING
            if kind in by_view and kind + CONTROL in by_view
        ]
        if controls:
            lines.append(f"{checkpoint}, κ with and without movement: {'; '.join(controls)}.")
    return lines
