"""What a trade-off would take: which cells are done, and how long training the others takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from moeprobe.runtime.arguments import several
from moeprobe.runtime.keywords import checked
from moeprobe.studies.tradeoff.trainings import METRICS, Cell, find_cells
from moeprobe.studies.train import make_trainer

# Steps that are timed of a kind of training, after a first one.
_STEPS = 3


@dataclass(frozen=True)
class PlannedCell:
    """A cell and what is left of it: done, to measure, to train, or interrupted; ``steps`` left and their seconds."""

    name: str
    state: str
    steps: int
    seconds: float


@dataclass(frozen=True)
class TradeoffPlan:
    """The cells, and the seconds that training takes, without evaluations and measurements, one after the other."""

    cells: tuple[PlannedCell, ...]
    seconds: float


@checked
def plan_tradeoff(
    given: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    overrides: Sequence[str] = (),
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> TradeoffPlan:
    """Say what ``tradeoff`` would do, by making a few steps of each kind of training; nothing is written.

    Raises:
        UserError: as ``tradeoff``.
    """
    planned = []
    per_step: dict[str, tuple[int, float]] = {}
    for cell in find_cells(several(given), out=Path(out), checkpoints=Path(checkpoints), overrides=overrides):
        if cell.done() or cell.trained():
            planned.append(PlannedCell(cell.name, "done" if cell.done() else "to measure", 0, 0.0))
            continue
        # Trainings that differ in their seed alone take the same time.
        if cell.config.group not in per_step:
            trainer = make_trainer(cell.config, folder=cell.checkpoint, device=device)
            per_step[cell.config.group] = trainer.total_steps, trainer.time_steps(_STEPS)
        total, seconds = per_step[cell.config.group]
        begun = (cell.checkpoint / "state.safetensors").is_file()
        left = total - _steps_made(cell)
        planned.append(PlannedCell(cell.name, "interrupted" if begun else "to train", left, left * seconds))
    return TradeoffPlan(tuple(planned), sum(cell.seconds for cell in planned))


def _steps_made(cell: Cell) -> int:
    """Return the steps of an interrupted training up to its last evaluation."""
    metrics = cell.checkpoint / METRICS
    return int(pd.read_csv(metrics)["step"].iloc[-1]) if metrics.is_file() else 0
