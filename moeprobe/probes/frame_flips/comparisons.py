"""What a frame is compared with, and what a table says of it: flip rates, and the chance line."""

import pandas as pd

from moeprobe.results.layouts.by_view import flips
from moeprobe.results.numbers import interval
from moeprobe.results.tables import set_match_of

# In the column ``view``.
BEFORE, FIRST, OTHER = "frame before", "first frame", "other clip"


def sentences(table: pd.DataFrame) -> list[str]:
    """Return a sentence per checkpoint."""
    rows = flips(table, set_match_of(table))
    lines = []
    for checkpoint, of_checkpoint in rows.groupby("checkpoint", sort=False):
        layer = of_checkpoint["layer"].iloc[0]
        by_view = {
            row["view"]: row for row in of_checkpoint[of_checkpoint["layer"] == layer].to_dict("records")
        }
        rates = [
            f"{interval(by_view[view])} against the {view}" for view in (BEFORE, FIRST) if view in by_view
        ]
        if OTHER in by_view:
            rates.append(f"{interval(by_view[OTHER])} against frames of another clip")
        lines.append(f"{checkpoint}, flip rate in {layer}: {', '.join(rates)}.")
    return lines
