"""Few-shot accuracy: a line per checkpoint and number of shots, the differences last."""

import dataclasses

import pandas as pd

from moeprobe.inputs.modality import Modality
from moeprobe.metrics.analyses.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import find
from moeprobe.results.layouts.along_severity import severity_table
from moeprobe.results.layouts.cells import Table, TableCell
from moeprobe.results.numbers import number

_NAME = FEWSHOT_ACCURACY.name
_COLUMNS = (
    (_NAME, "", FEWSHOT_ACCURACY.short),
    *((f"{_NAME}{end}", "pooled", find(f"{_NAME}{end}").label("pooled").strip()) for end in (CHANCE, KAPPA)),
)
_NOTE = "Intervals are over the evaluated {plural}, with the same draws; single draws: lowest to highest."


def few_shots_table(
    table: pd.DataFrame, comparison: pd.DataFrame | None, *, modality: Modality
) -> Table | None:
    """Return the table of all draws together, with the lowest and the highest accuracy of a single one.

    None where no accuracy was measured.
    """
    pooled, single = _by_draws(table)
    draws = single["draw"].nunique()
    caption = f"Few-shot accuracy of frozen features, {draws} draw{'' if draws == 1 else 's'} of the training"
    caption = f"{caption} {modality.plural}"
    ends = _ends(single, signed=False)
    differences = None
    if comparison is not None:
        differences, single = _by_draws(comparison)
        ends |= _ends(single, signed=True)
    base = severity_table(pooled, differences, _COLUMNS, caption=caption, modality=modality)
    if base is None:
        return None
    rows = [[*row, ends.get((row[0].text, row[1].key), TableCell(""))] for row in base.rows]
    note = f"{_NOTE.format(plural=modality.plural)} {base.note}"
    return dataclasses.replace(base, columns=[*base.columns, "single draws"], rows=rows, note=note)


def _by_draws(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of all draws together, and of single draws; in a file missing values are empty."""
    together = table["draw"].isna() | (table["draw"].astype(object) == "")
    return table[together], table[~together]


def _ends(single: pd.DataFrame, *, signed: bool) -> dict[tuple[str, float | None], TableCell]:
    """Return what a checkpoint or difference reached with single draws, by its name and the number of shots."""
    cells: dict[tuple[str, float | None], TableCell] = {}
    keys = ["checkpoint", "reference", "severity"] if signed else ["checkpoint", "severity"]
    for key, rows in single[single["metric"] == _NAME].groupby(keys, sort=False):
        low, high = rows["value"].min(), rows["value"].max()
        ends = dict.fromkeys(number(value, signed=signed) for value in (low, high))
        cells[" − ".join(key[:-1]), float(key[-1])] = TableCell(" to ".join(ends), key=float(low))
    return cells
