"""The short table of a result: its leading metrics, however it was measured."""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.metrics.registry import compared_first
from moeprobe.results.layouts.cells import Table
from moeprobe.results.layouts.side_by_side import side_by_side_table
from moeprobe.results.tables import FLOORS, agreement_of, set_match_of


def summary(table: pd.DataFrame, comparison: pd.DataFrame | None = None) -> Table:
    """Return a line per layer, severity and metric, and a column per checkpoint and difference.

    Args:
        table: of a run, with the columns of ``columns.COLUMNS``.
        comparison: its paired differences.
    """
    values, compared = _overall_rows(table), None if comparison is None else _overall_rows(comparison)
    metrics = list(zip(values["metric"], values["null"], strict=True))
    first = compared_first(agreement_of(table), set_match_of(table))
    read = [which in first for which in metrics]
    if not any(read):
        read = [null == "" for _, null in metrics]
    pairs = [] if compared is None else list(zip(compared["checkpoint"], compared["reference"], strict=True))
    return side_by_side_table(
        values[read],
        compared,
        list(dict.fromkeys(pairs)),
        caption="What was measured",
        modality=modality_of(table["tokens"], data=table["dataset"].iloc[0]),
    )


def _overall_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all experts and ordinary tokens together, without the noise floor and single draws."""
    keep = table["expert"].isna() & table["tokens"].isin([*ORDINARY, ""]) & ~table["view"].isin(FLOORS)
    return table[keep & table["draw"].isna()] if "draw" in table else table[keep]
