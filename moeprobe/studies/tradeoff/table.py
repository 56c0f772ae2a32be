"""The table of a trade-off: costs and measurements of each cell, a number per row.

Everything follows from what the cells' folders hold or is packed: values and intervals from the sums per image,
times and sizes from ``cell.json``. No model is needed.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.adapters.inspection import inspect_checkpoint
from moeprobe.errors import UserError
from moeprobe.judging.summarize import summarize
from moeprobe.metrics import costs
from moeprobe.metrics.costs import STEP_SECONDS_IN_TURN
from moeprobe.models.checkpoints.location import LAST
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.results import finished, summaries
from moeprobe.results.columns import COLUMNS, TRADEOFF_COLUMNS
from moeprobe.runtime.files import is_file
from moeprobe.runtime.progress import Advance
from moeprobe.studies.tradeoff.packing import needed_sums
from moeprobe.studies.tradeoff.trainings import Training
from moeprobe.studies.training_files import read_curve

# Losses before one that it is compared with, at least.
_BEFORE = 3
# Columns of a table that are empty text where they say nothing.
_WORDS = ("group", "layer", "view", "tokens", "null", "flag", "split")
PAPER = Path(__file__).with_name("published.csv")


def make_table(cells: Sequence[Training], *, run: str, progress: Advance = lambda _: None) -> pd.DataFrame:
    """Return the table of cells whose folders hold all that is wanted; ``run`` is the name of the output folder."""
    parts = []
    for cell in cells:
        parts += [
            _costs(cell),
            *(_run_rows(cell, cell.folder / question.folder) for question in cell.questions()),
        ]
        progress(1)
    table = pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)
    names = [*COLUMNS, *TRADEOFF_COLUMNS]
    table = table.reindex(columns=names).assign(run=run)
    # What no cell has (all of them diverged) is no text yet.
    table = table.assign(**{name: "" for name in _WORDS if table[name].isna().all()})
    return table.fillna(dict.fromkeys(_WORDS, "")).astype(
        {"images": int, "trials": int, "expert": "Int64", "expert_b": "Int64", "num_experts": "Int64"}
    )


def published_values() -> pd.DataFrame:
    """Return the values of "Routers in Vision MoE" (Liu et al.): Tables 1 to 3, 4, 6 and 8 of its appendix B.

    One row per table and router; empty where the paper has none (an unstable training). Days of pretraining on TPU v3.
    """
    return pd.read_csv(PAPER)


def _identity(cell: Training) -> dict[str, Any]:
    info = cell.info()
    assert info is not None
    return {
        "checkpoint": cell.name,
        "group": cell.config.group,
        "train_seed": cell.config.seed,
        "dataset": cell.data,
        "router": info["router"],
        "top_k": info["top_k"],
        "capacity_factor": info["capacity_factor"],
        "num_experts": cell.num_experts,
    }


def _costs(cell: Training) -> pd.DataFrame:
    """Return the costs of the training and the model; no row for unknown ones."""
    info = cell.info()
    assert info is not None
    training, model = info["training"], info["model"]
    number, judged = spikes(cell.curve(), cell.folder)
    amounts = [
        (costs.TRAINING_STEPS, training.get("steps"), 0, "training"),
        (costs.STEP_SECONDS, training.get("step_seconds"), training.get("timed_steps", 0), "training"),
        (costs.TRAINING_SECONDS, training.get("training_seconds"), 0, "training"),
        (costs.TRAINING_SPIKES, number, judged, "training"),
        (costs.TRAINING_DIVERGED, training.get("diverged"), 0, "training"),
        (costs.FLOPS_PER_IMAGE, model.get("flops_per_image"), 0, "model"),
        (costs.ACTIVE_PARAMETERS, model.get("active_parameters"), 0, "model"),
        (costs.PARAMETERS, model.get("parameters"), 0, "model"),
    ]
    rows = [
        _identity(cell)
        | {"metric": metric.name, "value": value, "images": 0, "trials": trials, "source": source}
        for metric, value, trials, source in amounts
        if value is not None
    ]
    return pd.DataFrame(rows)


def spikes(curve: str | None, path: Path) -> tuple[int | None, int]:
    """Return how many training losses are above twice the median of those before, and how many could be.

    Those with at least ``_BEFORE`` before them; None of a curve that is too short, or of none.
    """
    rows = pd.DataFrame() if curve is None else read_curve(curve, path)
    losses = [float(loss) for loss in rows.get("train_loss", ())]
    judged = range(_BEFORE, len(losses))
    above = sum(losses[step] > 2 * statistics.median(losses[:step]) for step in judged)
    return (above, len(judged)) if judged else (None, 0)


def _run_rows(cell: Training, folder: Path) -> pd.DataFrame:
    """Return the rows of one run: patches and output, nothing about single experts or the noise floor."""
    measured = finished.read(folder)
    run_info = summaries.About.of_request(
        measured.request, run="", aligned=measured.is_aligned, train_seeds={}, groups={}
    )
    table, _ = summarize(
        needed_sums(measured.sums), analyses=analyses_of(measured.request), run_info=run_info
    )
    table = table[table["expert"].isna()]
    return table.assign(**_identity(cell), source=f"cells/{cell.name}/{folder.name}")


# What is known of a cell's model, and how long its steps take where nothing else runs.

# The part of the benchmark and its race that a trade-off takes times from.
_PART, _RACE = "models", "training step"


def facts_of(inspected: dict[str, Any]) -> dict[str, Any]:
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


def facts_of_diverged(cell: Training) -> dict[str, Any]:
    """Return the same of a training that diverged, by its last evaluation, or by its configuration alone."""
    if is_file(cell.checkpoint / LAST):
        return facts_of(inspect_checkpoint(cell.checkpoint))
    model = cell.config.model
    router = "none" if model.dense else model.router_name
    factor = model.capacity_factor if isinstance(model.capacity_factor, float | int) else None
    facts = {"router": router, "top_k": model.top_k, "capacity_factor": None if model.top_k else factor}
    return facts | {"sha256": "", "model": {}}


def read_times(folder: Path, groups: Iterable[str]) -> pd.DataFrame:
    """Return the times of training steps that ``benchmarks.speed models`` wrote: ``median`` and ``rounds`` by group.

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
            f"{folder} has no times of training steps; python -m benchmarks.speed models --out {folder} measures them."
        )
    times = times.drop_duplicates("contestant").set_index("contestant")[["median", "rounds"]]
    if lacking := [name for name in dict.fromkeys(groups) if name not in times.index]:
        raise UserError(
            f"{folder} has no time of {', '.join(lacking[:3])}; time the routers of the same sweep: "
            f"python -m benchmarks.speed models --sweep NAME."
        )
    return times


def with_times(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the table of a trade-off with a row more per cell: the time of its step in ``benchmarks.speed models``.

    Raises:
        UserError: there are none, or not of one of the cells.
    """
    cells = table.drop_duplicates("checkpoint")
    times = read_times(folder, cells["group"]).loc[cells["group"]]
    identity = ["run", "checkpoint", "group", "train_seed", "dataset", *TRADEOFF_COLUMNS, "router", "top_k"]
    rows = cells[identity].assign(
        metric=STEP_SECONDS_IN_TURN.name,
        value=times["median"].to_numpy(),
        trials=times["rounds"].to_numpy(),
        images=0,
        source=str(folder / "table.csv"),
    )
    words = [name for name in _WORDS if name in table and name not in rows]
    rows = rows.assign(**dict.fromkeys(words, ""))
    types = {name: table[name].dtype for name in rows}
    return pd.concat([table, rows.astype(types)], ignore_index=True)
