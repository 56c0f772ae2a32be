"""What a table of ``mismatch`` says in words."""

import pandas as pd

from moeprobe.metrics.stats.statistic import PartOf
from moeprobe.results.numbers import interval


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each model how large the mismatch is, and how much of it goes with the server's routing."""
    lines = []
    for name, checkpoint_rows in table.groupby("checkpoint", sort=False):
        rows = {row["metric"]: row for row in checkpoint_rows.to_dict("records")}
        total, replayed, routing, share = (
            rows[f"mismatch{part}"] for part in ("", "_rest", "_routing", "_routing_share")
        )
        sentence = (
            f"{name}: log-probabilities differ by {interval(total)} from the server's, and by "
            f"{interval(replayed)} where the model repeats the server's routing"
        )
        if share["flag"] == PartOf.undefined:
            lines.append(f"{sentence}. This is rounding, so no share of it is routing.")
        else:
            lines.append(
                f"{sentence}: {interval(routing)} of the mismatch is routing, a share of {interval(share)}."
            )
    return lines
