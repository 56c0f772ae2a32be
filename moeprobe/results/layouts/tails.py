"""A line per layer on the inputs that change most: quantiles over inputs, and the share of inputs above a limit."""

from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.results.layouts.cells import Table, TableCell, severity
from moeprobe.results.numbers import number

_KEYS = ("checkpoint", "layer", "view", "severity", "tokens")


def tails_table(table: pd.DataFrame, modality: Modality, *, folded: bool = False) -> Table:
    """Return the table of ordinary tokens; of others where there are none.

    Args:
        table: with ``columns.TAILS_COLUMNS``.
        modality: of the inputs, with the sampling unit.
        folded: whether a page folds it up.
    """
    ordinary = table[table["tokens"].isin(ORDINARY)]
    values = ordinary if len(ordinary) else table
    keys = [name for name in _KEYS if values[name].nunique(dropna=False) > 1 or name in _KEYS[:2]]
    columns = list(dict.fromkeys(zip(values["metric"], values["at"], strict=True)))
    lines = []
    for key, rows in values.groupby(list(_KEYS), sort=False, dropna=False):
        of_line = dict(zip(_KEYS, key, strict=True))
        by_column = {(row["metric"], row["at"]): row for row in rows.to_dict("records")}
        lines.append(
            [
                *(
                    severity(of_line[name]) if name == "severity" else TableCell(str(of_line[name]))
                    for name in keys
                ),
                *(_cell(by_column[column]) for column in columns),
                TableCell(f"{rows['inputs'].iloc[0]:,}", key=float(rows["inputs"].iloc[0])),
            ]
        )
    headings = [f"{at:.0%} quantile" if metric == "quantile" else f"above {at:g}" for metric, at in columns]
    return Table(
        f"Tails: the share of {modality.tokens} that change experts",
        [*keys, *headings, modality.units],
        lines,
        f"Quantiles over {modality.units}; [low, high]: 95 % intervals of ordered values, none where there are too "
        "few.",
        folded=folded,
        keys=len(keys),
    )


def _cell(row: dict[Any, Any]) -> TableCell:
    ends = "" if row["ci_low"] != row["ci_low"] else f"[{number(row['ci_low'])}, {number(row['ci_high'])}]"
    return TableCell(number(row["value"]), ends, float(row["value"]))
