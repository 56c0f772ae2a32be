"""A line per model, data set or recording on tokens until every expert has enough of them."""

from dataclasses import replace

import pandas as pd

from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.metrics.analyses.expert_coverage import (
    BELOW,
    COVERED,
    SUBSET_INPUTS,
    SUBSET_TOKENS,
    TOKENS_NEEDED,
    TOKENS_NEEDED_EVEN,
)
from moeprobe.results.layouts.cells import Table, TableCell, value
from moeprobe.results.tables import modality_of_table


def by_source(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows about all layers by what they are of: a model or recording, or one with a data set.

    Data sets are named where there are several.
    """
    rows = table[table["layer"] == ""]
    names = [name for name in ("checkpoint", "dataset") if rows[name].nunique() > 1] or ["checkpoint"]
    return {", ".join(map(str, key)): of_one for key, of_one in rows.groupby(names, sort=False)}


def modality_of_coverage(table: pd.DataFrame) -> Modality:
    """Return what the inputs and tokens of a table are called."""
    return modality_of(table["tokens"], data=str(table["dataset"].iloc[0]))


def coverage_table(table: pd.DataFrame) -> Table | None:
    """Return the table of tokens that are needed.

    Args:
        table: values of a run.
    """
    modality = modality_of_coverage(table)
    columns = {
        BELOW.name: "experts below",
        TOKENS_NEEDED.name: f"{modality.tokens} needed",
        TOKENS_NEEDED_EVEN.name: f"{modality.tokens}, even router",
        SUBSET_TOKENS.name: f"{modality.tokens} of a subset",
        SUBSET_INPUTS.name: f"its {modality.plural}",
    }
    lines = []
    for name, rows in by_source(table).items():
        curve = rows[rows["metric"] == COVERED.name]
        last = curve.loc[curve["severity"].idxmax()].to_dict()
        by_metric = {row["metric"]: row for row in rows[rows["severity"].isna()].to_dict("records")}
        lines.append(
            [
                TableCell(name),
                TableCell(f"{int(last['severity']):,}", key=float(last["severity"])),
                replace(value(last), between=""),  # with all tokens, every order covers the same
                *(value(by_metric.get(metric)) for metric in columns),
            ]
        )
    headings = ["of", modality.tokens, "covered", *columns.values()]
    units = modality_of_table(table, inputs=modality).units
    note = f"Ranges hold 95 % of random orders of the {units}; they are no confidence intervals."
    title = f"{modality.tokens.capitalize()} until every expert has enough"
    return Table(title, headings, lines, note, keys=1, place=0)
