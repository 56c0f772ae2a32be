"""The table of a trade-off: what each cell costs and what was measured of it, a number per row.

Everything follows from what the cells' folders hold or is packed: values and intervals from the sums per image,
times and sizes from ``cell.json``. No model is needed.
"""

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.metrics import costs
from moeprobe.results import finished, summaries
from moeprobe.results.columns import COLUMNS, TRADEOFF_COLUMNS
from moeprobe.runtime.progress import Advance
from moeprobe.studies.compare_sources import analyses_of, is_aligned
from moeprobe.studies.tradeoff.packing import of_table
from moeprobe.studies.tradeoff.trainings import Cell

# Losses before one that it is compared with, at least.
_BEFORE = 3
PAPER = Path(__file__).with_name("published.csv")


def make_table(cells: Sequence[Cell], *, run: str, progress: Advance = lambda _: None) -> pd.DataFrame:
    """Return the table of cells whose folders hold all that is wanted; ``run`` is the name of the output folder."""
    parts = []
    for cell in cells:
        parts += [
            _costs(cell),
            *(_measured(cell, cell.folder / one.folder) for one in cell.questions()),
        ]
        progress(1)
    table = pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)
    names = [*COLUMNS, *TRADEOFF_COLUMNS]
    table = table.reindex(columns=names).assign(run=run)
    words = [name for name in ("group", "layer", "view", "tokens", "null", "flag", "split") if name in table]
    # What no cell has (all of them diverged) is no text yet.
    table = table.assign(**{name: "" for name in words if table[name].isna().all()})
    return table.fillna(dict.fromkeys(words, "")).astype(
        {"images": int, "trials": int, "expert": "Int64", "expert_b": "Int64", "num_experts": "Int64"}
    )


def published() -> pd.DataFrame:
    """Return the values of "Routers in Vision MoE" (Liu et al.): Tables 1 to 3, 4, 6 and 8 of its appendix B.

    One row per table and router; empty where the paper has none (an unstable training). Days of pretraining on TPU v3.
    """
    return pd.read_csv(PAPER)


def _identity(cell: Cell) -> dict[str, Any]:
    about = cell.about()
    assert about is not None
    return {
        "checkpoint": cell.name,
        "group": cell.config.group,
        "train_seed": cell.config.seed,
        "dataset": cell.data,
        "router": about["router"],
        "top_k": about["top_k"],
        "capacity_factor": about["capacity_factor"],
        "num_experts": cell.num_experts,
    }


def _costs(cell: Cell) -> pd.DataFrame:
    """Return what the training and the model cost; no row for what is not known."""
    about = cell.about()
    assert about is not None
    training, model = about["training"], about["model"]
    number, judged = spikes(cell.curve())
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


def spikes(curve: str | None) -> tuple[int | None, int]:
    """Return how many training losses are above twice the median of those before, and how many could be.

    Those with at least ``_BEFORE`` before them; None of a curve that is too short, or of none.
    """
    losses = (
        [] if curve is None else pd.read_csv(io.StringIO(curve)).get("train_loss", pd.Series(dtype=float))
    )
    losses = [float(loss) for loss in losses]
    judged = range(_BEFORE, len(losses))
    above = sum(losses[place] > 2 * statistics.median(losses[:place]) for place in judged)
    return (above, len(judged)) if judged else (None, 0)


def _measured(cell: Cell, folder: Path) -> pd.DataFrame:
    """Return the rows of one run: patches and output, nothing about single experts or the noise floor."""
    measured = finished.read(folder)
    request = measured.request
    about = summaries.About(
        run="",
        dataset=request["data"],
        split=request["split"],
        seed=request["seed"],
        aligned=is_aligned(measured),
        train_seeds={},
        groups={},
    )
    table, _ = summaries.summarize(of_table(measured.sums), analyses=analyses_of(measured), about=about)
    table = table[table["expert"].isna()]
    return table.assign(**_identity(cell), source=f"cells/{cell.name}/{folder.name}")
