"""Checkpoints along a severity, or numbers of shots: a line for each; and how far clean inputs match themselves."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.inputs.regions import REGIONS
from moeprobe.metrics.analyses.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import find, tokens_choose
from moeprobe.results.layouts.cells import (
    Table,
    TableCell,
    counts,
    severity,
    severity_heading,
    trials_of,
    value,
)
from moeprobe.results.numbers import floors, number, sentence_case
from moeprobe.results.tables import FLOORS, agreement_of, is_pooled

Row = dict[str, Any]
Which = tuple[str, str]  # metric, null
# (metric, null, heading)
Columns = Sequence[tuple[str, str, str]]
BY_REGION = "by what the patch shows"
REGION_COLUMNS = tuple((region, "", f"κ, {region}") for region in reversed(REGIONS))


def severity_table(
    table: pd.DataFrame,
    comparison: pd.DataFrame | None,
    columns: Columns,
    *,
    caption: str,
    modality: Modality,
) -> Table | None:
    """Return the columns that were measured in one place (layer and tokens, or output), None for none of them.

    Args:
        table: values of that place.
        comparison: differences of it.
        columns: (metric, null, heading).
        caption: of the table.
        modality: images or texts.
    """
    selected = {(metric, null) for metric, null, _ in columns}
    blocks: dict[str, dict[float, dict[Which, Row]]] = {}
    rows_of: dict[Which, list[Row]] = {}
    several_views = "view" in table and table["view"].nunique() > 1
    for part in (table, comparison):
        for row in [] if part is None else part.to_dict("records"):
            which = (row["metric"], row["null"])
            if which not in selected:
                continue
            name, signed = row["checkpoint"], part is comparison
            if signed:
                name = f"{name} − {row['reference']}"
            else:
                rows_of.setdefault(which, []).append(row)
            if several_views:
                name = f"{name}, {row['view']}"
            blocks.setdefault(name, {}).setdefault(row["severity"], {})[which] = row | {"signed": signed}
    columns = [column for column in columns if column[:2] in rows_of]
    if not columns:
        return None
    steps = severity_heading(metric for metric, *_ in columns)
    rows = [
        [
            TableCell(name),
            severity(at),
            *(value(row_of.get((m, null)), signed=_is_signed(row_of)) for m, null, _ in columns),
        ]
        for name, block in blocks.items()
        for at, row_of in block.items()
    ]
    headings = ["checkpoint", steps, *(heading for *_, heading in columns)]
    note = _rests_on(columns, rows_of, modality)
    return Table(caption, headings, rows, note, keys=2, place=1)


def _is_signed(row_of: dict[Which, Row]) -> bool:
    return any(row["signed"] for row in row_of.values())


def _rests_on(columns: Columns, rows_of: dict[Which, list[Row]], modality: Modality) -> str:
    """Return on how many inputs and trials the columns rest."""
    resting: dict[str, list[str]] = {}
    for metric, null, heading in columns:
        images, trials = (
            counts(row[what] for row in rows_of[metric, null]).text for what in ("images", "trials")
        )
        resting.setdefault(f"{modality.format_count(images)}, {trials_of(trials)}", []).append(heading)
    rests = "; ".join(f"{', '.join(names)}: {on}" for on, names in resting.items())
    return f"What the values rest on: {rests}."


def regional(table: pd.DataFrame, first: str) -> pd.DataFrame:
    """Return κ of the patches of each region, given the agreement that is read first, as ``REGION_COLUMNS``."""
    of_regions = table["tokens"].isin(REGIONS) & (table["metric"] == f"{first}{KAPPA}")
    pooled = table[of_regions & (table["null"] == "pooled")]
    return pooled.assign(metric=pooled["tokens"], null="", tokens="region")


def noise_floor(table: pd.DataFrame, *, dtype: str | None, modality: Modality) -> Table | None:
    """Return how far clean inputs match themselves, of all rows of a run; None where that was not measured.

    ``dtype`` is the narrower one.
    """
    if "view" not in table:
        return None
    first = agreement_of(table)
    floor = table[table["view"].isin(FLOORS) & (table["metric"] == first) & table["tokens"].isin(ORDINARY)]
    if floor.empty:
        return None
    rows = []
    for (checkpoint, layer), layer_rows in floor.groupby(["checkpoint", "layer"], sort=False):
        by_view = {row["view"]: row for row in layer_rows.to_dict("records")}
        cells = [value(by_view.get(view)) for view in FLOORS]
        rows.append(
            [
                TableCell(checkpoint),
                TableCell(layer),
                *cells,
                *(counts(layer_rows[what]) for what in ("images", "trials")),
            ]
        )
    what = sentence_case(find(first).full_label())
    note = f"{what} of clean {modality.plural} with themselves: any distance from 1 is rounding."
    note += "".join(f" {sentence}." for sentence in random_routers(floor))
    columns = ["checkpoint", "layer", *floors(dtype), modality.units, "trials"]
    return Table("Noise floor", columns, rows, note, keys=2, details=2)


def random_routers(table: pd.DataFrame) -> list[str]:
    """Return what a run says of each checkpoint that does not repeat itself on clean inputs."""
    first = agreement_of(table)
    what = "the tokens keep their first expert" if tokens_choose(first) else find(first).full_label()
    # A cosine of the same weights is one but for its rounding.
    again = table[(table["view"] == FLOORS[0]) & (table["metric"] == first) & (table["value"] < 1 - 1e-6)]
    return [
        f"{name} is random at evaluation: run again unchanged, only {number(rows['value'].min())} of {what}"
        for name, rows in again.groupby("checkpoint", sort=False)
    ]


# Few-shot accuracy: a line per checkpoint and number of shots, the differences last.

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
    """Return the rows of all draws together, and of single draws."""
    together = is_pooled(table["draw"])
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
