"""A line per checkpoint and variant of its run: the share of tokens that choose other experts, layer by layer."""

from collections.abc import Callable

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.registry import find
from moeprobe.results.layouts.cells import Table, TableCell, counts, value
from moeprobe.results.tables import agreement_of, first_and_last, set_match_of

# What is said of a model's answers, as far as it was measured.
_OUTPUT = ("accuracy", "prediction_agreement", "log_probability_gap", "k3_divergence")


def flips(table: pd.DataFrame, match: str = "") -> pd.DataFrame:
    """Return the rows about ordinary tokens that choose otherwise: 1 minus a match, by default the leading one."""
    rows = table[table["tokens"].isin(ORDINARY) & table["layer"].ne("")]
    if rows.empty:
        return rows
    rows = rows[rows["metric"] == (match or agreement_of(rows))]
    low, high = 1 - rows["ci_high"], 1 - rows["ci_low"]
    return rows.assign(value=1 - rows["value"], ci_low=low, ci_high=high)


def by_view_table(table: pd.DataFrame, *, caption: str) -> Table:
    """Return the table: shares of tokens that choose otherwise, κ of the first layer, then the output."""
    rows = flips(table)
    layers = list(dict.fromkeys(rows["layer"]))
    selected = first_and_last(layers)
    kappas = table[table["tokens"].isin(ORDINARY) & table["null"].eq("pooled")]
    kappas = kappas[kappas["metric"] == f"{agreement_of(table)}{KAPPA}"]
    outputs = [name for name in _OUTPUT if (table["metric"] == name).any()]
    columns: dict[str, tuple[pd.DataFrame, str]] = {
        f"{layer}: choose otherwise": (rows, layer) for layer in selected
    }
    if sets := set_match_of(table):
        columns |= {f"{layer}: have another set": (flips(table, sets), layer) for layer in selected}
    columns |= {f"{layer}: κ": (kappas, layer) for layer in selected[:1]}
    columns |= {find(name).metric.label: (table[table["metric"] == name], "") for name in outputs}
    several = table["checkpoint"].nunique() > 1
    lines = []
    for (checkpoint, view), of_line in table.groupby(["checkpoint", "view"], sort=False):
        leading = ([TableCell(str(checkpoint))] if several else []) + [TableCell(str(view))]
        pick = _picker(str(checkpoint), str(view))
        lines.append(
            [
                *leading,
                *(value(pick(*column)) for column in columns.values()),
                counts([of_line["images"].max()]),
            ]
        )
    omitted = [name for name in layers if name not in selected]
    note = f"Of {len(layers)} layers the first and the last; table.csv has all." if omitted else ""
    heading = [*(["checkpoint"] if several else []), "variant"]
    return Table(
        caption,
        [*heading, *columns, modality_of(table["tokens"]).plural],
        lines,
        note,
        keys=len(heading),
        place=len(heading) - 1,
        details=1,
    )


def _picker(checkpoint: str, view: str) -> Callable[[pd.DataFrame, str], dict[str, object] | None]:
    """Return a function that picks a layer's row for a line."""

    def pick(rows: pd.DataFrame, layer: str) -> dict[str, object] | None:
        of_line = (rows["checkpoint"] == checkpoint) & (rows["view"] == view) & (rows["layer"] == layer)
        matches = rows[of_line].to_dict("records")
        return matches[0] if matches else None

    return pick
