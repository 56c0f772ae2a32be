"""What a trade-off would take: which cells are done, and how long training the others takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprobe.models.config import TrainConfig
from moeprobe.runtime.arguments import checked, several
from moeprobe.runtime.files import STATE, is_file
from moeprobe.studies.tradeoff.trainings import METRICS, find_cells
from moeprobe.studies.train import make_trainer
from moeprobe.studies.training_files import SUMMARY, read_curve

# Steps that are timed of a kind of training, after a first one.
_STEPS = 3


@dataclass(frozen=True)
class PlannedCell:
    """A cell and its remaining work: done, to measure, to train, or interrupted; ``steps`` left and their seconds."""

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
    timed: dict[str, list[tuple[int, float]]] = {}
    for cell in find_cells(several(given), out=Path(out), checkpoints=Path(checkpoints), overrides=overrides):
        if cell.is_done() or cell.is_trained():
            planned.append(PlannedCell(cell.name, "done" if cell.is_done() else "to measure", 0, 0.0))
            continue
        # Trainings that differ in their seed alone take the same time.
        if cell.config.group not in timed:
            timed[cell.config.group] = [_timed(stage, cell.checkpoint, device) for stage in cell.stages]
        folders = cell.stage_folders
        begun = any(is_file(folder / name) for folder in folders for name in (STATE, SUMMARY))
        remaining = [
            (max(total - _steps_made(folder), 0), per_step)
            for folder, (total, per_step) in zip(folders, timed[cell.config.group], strict=True)
        ]
        state = "interrupted" if begun else "to train"
        seconds = sum(steps * per_step for steps, per_step in remaining)
        planned.append(PlannedCell(cell.name, state, sum(steps for steps, _ in remaining), seconds))
    return TradeoffPlan(tuple(planned), sum(cell.seconds for cell in planned))


def _timed(config: TrainConfig, folder: Path, device: str) -> tuple[int, float]:
    """Return the steps of a training and the seconds of each, with weights of any kind: a stage's are not there yet."""
    fresh = config.model_copy(update={"initialise": None, "kl_weight": 0.0})
    trainer = make_trainer(fresh, folder=folder, device=device)
    return trainer.total_steps, trainer.time_steps(_STEPS)


def _steps_made(folder: Path) -> int:
    """Return the steps of a training up to its last evaluation."""
    metrics = folder / METRICS
    if not is_file(metrics):
        return 0
    steps = read_curve(metrics.read_text(encoding="utf-8"), folder)["step"]
    # None yet of a training that was ended before its first evaluation.
    return int(steps.max()) if len(steps) else 0
