"""What is known of a cell's model, and how long its steps take where nothing else runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.errors import UserError
from moeprobe.metrics.costs import STEP_SECONDS_IN_TURN
from moeprobe.results.columns import TRADEOFF_COLUMNS
from moeprobe.runtime.files import is_file
from moeprobe.studies.tradeoff.trainings import Cell

# The part of the benchmark and its race that a trade-off takes times from.
_PART, _RACE = "models", "training step"
# Columns of a table that are empty text where they say nothing.
_WORDS = ("layer", "view", "tokens", "null", "flag", "split")


def known(inspected: dict[str, Any]) -> dict[str, Any]:
    """Return what ``cell.json`` says of a checkpoint that was inspected."""
    layer = next(iter(inspected["layers"]), {"router": "none", "top_k": None, "capacity_factor": None})
    return {
        "sha256": inspected["sha256"],
        "router": layer["router"],
        "top_k": layer["top_k"],
        "capacity_factor": layer["capacity_factor"] if layer["top_k"] is None else None,
        "model": {
            key: inspected[key]
            for key in ("model", "tokens", "parameters", "active_parameters", "flops_per_image")
        },
    }


def known_of_diverged(cell: Cell) -> dict[str, Any]:
    """Return the same of a training that diverged, by its last evaluation, or by its configuration alone."""
    if (cell.checkpoint / "last.safetensors").is_file():
        return known(inspect_checkpoint(cell.checkpoint))
    model = cell.config.model
    router = "none" if model.dense else model.router_name
    factor = model.capacity_factor if isinstance(model.capacity_factor, float | int) else None
    facts = {"router": router, "top_k": model.top_k, "capacity_factor": None if model.top_k else factor}
    return facts | {"sha256": "", "model": {}}


def read_times(folder: Path, groups: Iterable[str]) -> pd.DataFrame:
    """Return the times of training steps that ``moeprobe bench models`` wrote: ``median`` and ``rounds`` by group.

    Raises:
        UserError: there are none, or not of one of these groups.
    """
    path = folder / "table.csv"
    times = pd.DataFrame()
    if is_file(path):
        table = pd.read_csv(path)
        if {"part", "race", "contestant", "median", "rounds"} <= set(table.columns):
            times = table[(table["part"] == _PART) & (table["race"] == _RACE)]
    if times.empty:
        raise UserError(
            f"{folder} has no times of training steps; moeprobe bench models --out {folder} measures them."
        )
    times = times.drop_duplicates("contestant").set_index("contestant")[["median", "rounds"]]
    if lacking := [name for name in dict.fromkeys(groups) if name not in times.index]:
        raise UserError(
            f"{folder} has no time of {', '.join(lacking[:3])}; time the routers of the same sweep: moeprobe bench "
            "models --sweep NAME."
        )
    return times


def with_times(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the table of a trade-off with a row more per cell: the time of its step in ``moeprobe bench models``.

    Raises:
        UserError: there are none, or not of one of the cells.
    """
    cells = table.drop_duplicates("checkpoint")
    own = read_times(folder, cells["group"]).loc[cells["group"]]
    identity = ["run", "checkpoint", "group", "train_seed", "dataset", *TRADEOFF_COLUMNS, "router", "top_k"]
    rows = cells[identity].assign(
        metric=STEP_SECONDS_IN_TURN.name,
        value=own["median"].to_numpy(),
        trials=own["rounds"].to_numpy(),
        images=0,
        source=str(folder / "table.csv"),
    )
    words = [name for name in _WORDS if name in table and name not in rows]
    rows = rows.assign(**dict.fromkeys(words, ""))
    types = {name: table[name].dtype for name in rows}
    return pd.concat([table, rows.astype(types)], ignore_index=True)
