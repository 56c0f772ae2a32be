"""The columns of tables, as the code that writes them declares them."""

from collections.abc import Mapping

from moeprobe.results.columns import (
    COLUMNS,
    COMPARISON_COLUMNS,
    CURVE_COLUMNS,
    PLAN_COLUMNS,
    PLAN_TRAININGS_COLUMNS,
    TAILS_COLUMNS,
    TRADEOFF_COLUMNS,
    TRAININGS_COLUMNS,
    UNIT_COLUMNS,
)
from writers.markdown import code, page, table


def pages() -> dict[str, str]:
    """Return the page of all columns."""
    text = page(
        "Columns",
        "results/columns.py",
        "Every `table.csv` and `comparison.csv` has one value per line, in these columns. `comparison.csv` holds the "
        "paired differences from the first checkpoint, with the same columns and `reference`. The metrics are on "
        "[a page of their own](metrics.md).",
        columns(COLUMNS),
        "## Of runs with units\n\nRuns with [`--unit`](../concepts/units.md) add to all tables:",
        columns(UNIT_COLUMNS),
        "## Of `moeprobe compare`\n\n`compare` adds to its `comparison.csv`:",
        columns(COMPARISON_COLUMNS),
        "Where three or more pairs of trainings are compared, `compare` and `tradeoff` write `trainings.csv`:",
        columns(TRAININGS_COLUMNS),
        "## Of `moeprobe tails`\n\nIts `tails.csv` has a line per quantile of a layer:",
        columns(TAILS_COLUMNS),
        "## Of `moeprobe plan`\n\nIts `plan.csv` has a line per comparison of the pilot:",
        columns(PLAN_COLUMNS),
        "With `--trainings`, `plan-trainings.csv` has a line per number of pairs and images:",
        columns(PLAN_TRAININGS_COLUMNS),
        "## Of `moeprobe tradeoff`\n\n`tradeoff` adds to its `table.csv`:",
        columns(TRADEOFF_COLUMNS),
        "## Of `moeprobe curves`\n\nIts `curves.csv` has a line per training and evaluation:",
        columns(CURVE_COLUMNS),
    )
    return {"reference/columns.md": text}


def columns(described: Mapping[str, str]) -> str:
    """Return the table of some columns."""
    return table(["column", "meaning"], ([code(name), meaning] for name, meaning in described.items()))
