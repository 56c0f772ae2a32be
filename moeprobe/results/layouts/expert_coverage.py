"""A line per recording on tokens until every expert has enough of them."""

import pandas as pd

from moeprobe.metrics.analyses.expert_coverage import (
    BELOW,
    COVERED,
    SUBSET_REQUESTS,
    SUBSET_TOKENS,
    TOKENS_NEEDED,
    TOKENS_NEEDED_EVEN,
)
from moeprobe.results.layouts.cells import Table, TableCell, value

_COLUMNS = {
    BELOW.name: "experts below",
    TOKENS_NEEDED.name: "tokens needed",
    TOKENS_NEEDED_EVEN.name: "even router",
    SUBSET_TOKENS.name: "tokens of a subset",
    SUBSET_REQUESTS.name: "its requests",
}


def coverage_table(table: pd.DataFrame) -> Table | None:
    """Return the table of tokens that are needed.

    Args:
        table: values of a run.
    """
    rows = {
        (row["checkpoint"], row["metric"]): row
        for row in table[table["severity"].isna() & (table["layer"] == "")].to_dict("records")
    }
    curves = table[table["metric"] == COVERED.name]
    lines = []
    for name in dict.fromkeys(curves["checkpoint"]):
        of_recording = curves[curves["checkpoint"] == name]
        last = of_recording.loc[of_recording["severity"].idxmax()].to_dict()
        lines.append(
            [
                TableCell(name),
                TableCell(f"{int(last['severity']):,}", key=float(last["severity"])),
                value(last),
                *(value(rows.get((name, metric))) for metric in _COLUMNS),
            ]
        )
    headings = ["checkpoint", "tokens", "covered", *_COLUMNS.values()]
    note = "Ranges hold 95 % of random orders of the requests; they are no confidence intervals."
    return Table("Tokens until every expert has enough", headings, lines, note, keys=1, place=0)
