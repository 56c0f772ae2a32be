"""Trainings that differ in their seed alone: what a figure calls them, and what is drawn of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

_ABOUT = ["group", "router", "top_k", "capacity_factor", "num_experts"]


@dataclass(frozen=True)
class Group:
    """Cells that differ in their seed alone.

    Attributes:
        label: its line in a figure; groups of one label differ in their budget.
        setting: its budget, in words.
        size: its budget, k or c: equal ones compute equally much.
        cells: their names.
        router: its router.
        experts: how many an MoE layer has; NaN where there is none, or it is not known.
    """

    label: str
    setting: str
    size: float
    cells: tuple[str, ...]
    router: str
    experts: float


@dataclass(frozen=True)
class Spread:
    """A number of a group: the mean over its seeds and what the bar reaches from and to.

    The bar is the range of the seeds, and of a single one its interval over images, where there is one.
    """

    mean: float
    low: float
    high: float
    seeds: int


def groups(table: pd.DataFrame) -> list[Group]:
    """Return the groups of a table in their order."""
    # Tables from before had no number of experts.
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint").reindex(columns=_ABOUT)
    cells = cells.assign(group=[row["group"] or name for name, row in cells.iterrows()])
    kinds = cells.drop_duplicates("group")
    names: tuple[Callable[[pd.Series], str], ...] = (
        lambda row: str(row["router"]),
        lambda row: f"{row['router']}, E = {row['num_experts']}",
        lambda row: str(row["group"]),
    )
    label = next(one for one in names if one is names[-1] or _distinct(kinds, one))
    return [
        Group(
            label=label(row),
            setting=setting(row),
            size=_size(row),
            cells=tuple(map(str, cells.index[cells["group"] == row["group"]])),
            router=str(row["router"]),
            experts=float("nan") if pd.isna(row["num_experts"]) else float(row["num_experts"]),
        )
        for _, row in kinds.iterrows()
    ]


def setting(row: pd.Series) -> str:
    """Return ``k = 2`` where tokens choose, ``c = 1`` where experts do."""
    for name, letter in (("top_k", "k"), ("capacity_factor", "c")):
        if not pd.isna(row[name]):
            return f"{letter} = {row[name]:.3g}"
    return "no k or c"


def spread(group: Group, rows: pd.DataFrame) -> Spread | None:
    """Return a number of a group from its rows, indexed by cell; None where no cell has it."""
    here = rows.loc[[name for name in group.cells if name in rows.index]]
    here = here[here["value"].notna()]
    if here.empty:
        return None
    ends = here["value"], here["value"]
    if len(here) == 1:
        ends = here["ci_low"].fillna(here["value"]), here["ci_high"].fillna(here["value"])
    return Spread(float(here["value"].mean()), float(ends[0].min()), float(ends[1].max()), len(here))


def deviations(all_groups: list[Group], rows: pd.DataFrame) -> tuple[float, float] | None:
    """Return the standard deviation of the groups' means, and that of seeds within a group, pooled.

    None where there are not at least two groups and two seeds of one, and where seeds make no difference.
    """
    values = [rows["value"].reindex(list(group.cells)).dropna().to_numpy(float) for group in all_groups]
    values = [found for found in values if len(found)]
    within = [found for found in values if len(found) > 1]
    if len(values) < 2 or all(np.ptp(found) == 0 for found in within):
        return None
    squares = sum(((found - found.mean()) ** 2).sum() for found in within)
    pooled = squares / sum(len(found) - 1 for found in within)
    return float(np.std([found.mean() for found in values], ddof=1)), float(np.sqrt(pooled))


def _distinct(kinds: pd.DataFrame, label: Callable[[pd.Series], str]) -> bool:
    """Whether a label and the budget together tell all groups apart."""
    return len({(label(row), setting(row)) for _, row in kinds.iterrows()}) == len(kinds)


def _size(row: pd.Series) -> float:
    found = row["capacity_factor"] if pd.isna(row["top_k"]) else row["top_k"]
    return float("nan") if pd.isna(found) else float(found)
