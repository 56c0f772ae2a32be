"""Progress reports of a training, its record in checkpoints, and its metrics for TensorBoard (optional)."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.inputs.data.base import ImageDataset
from moeprobe.models.config import TrainConfig
from moeprobe.runtime.catalog import plugins_in
from moeprobe.runtime.extras import missing_package


@dataclass(frozen=True)
class Report:
    """The progress of a training run.

    Attributes:
        step: how many are done.
        total_steps: how many there are.
        values: of the last step; of an evaluation its row of ``metrics.csv``.
        images_per_second: since the run was started or resumed, evaluations included.
        seconds_left: at that rate.
        evaluated: this is an evaluation.
    """

    step: int
    total_steps: int
    values: dict[str, float]
    images_per_second: float
    seconds_left: float
    evaluated: bool = False


class Reporter:
    """Makes the reports of a run; construct it when the run starts or resumes.

    Args:
        report: called with them.
        first: steps that are done already.
        total_steps: how many there are.
        batch_size: images of a step.
    """

    def __init__(
        self, report: Callable[[Report], None], *, first: int, total_steps: int, batch_size: int
    ) -> None:
        self._report = report
        self._first, self._total, self._batch_size = first, total_steps, batch_size
        self._started = time.perf_counter()

    def rate(self, step: int) -> float:
        """Return the images per second up to a step."""
        return (step - self._first) * self._batch_size / (time.perf_counter() - self._started)

    def report(self, step: int, values: dict[str, float], *, evaluated: bool = False) -> None:
        """Report ``values`` when ``step`` steps are done."""
        rate = self.rate(step)
        seconds = (self._total - step) * self._batch_size / rate if step > self._first else math.nan
        self._report(Report(step, self._total, values, rate, seconds, evaluated))


def start_record(train_data: ImageDataset, start: dict[str, Any]) -> dict[str, Any]:
    """Return the origins of a training that are not in its configuration: weights (``start``), a split."""
    return start | ({"split": train_data.split_note} if train_data.split_note else {})


def training_record(
    config: TrainConfig, *, step: int, total_steps: int, val_accuracy: float | None
) -> dict[str, Any]:
    """Return what a checkpoint says of its training."""
    plugins = plugins_in(config.model_dump())
    return {
        "name": config.name,
        "group": config.group,
        "seed": config.seed,
        "data": config.data.source,
        "objective": config.objective.model_dump(),
        "view": config.view.model_dump(),
        "initialise": None if config.initialise is None else config.initialise.model_dump(),
        "step": step,
        "total_steps": total_steps,
        "val_accuracy": val_accuracy,
        **({} if config.mae is None else {"mae": config.mae.model_dump()}),
        **({"freeze": config.freeze} if config.freeze else {}),
        **({"plugins": plugins} if plugins else {}),
    }


class Board:
    """Writes event files.

    Args:
        folder: where to; a resumed run adds a file to those that are there.
        step: the step the run starts at; what an earlier start wrote beyond it is not shown.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=step + 1)

    def write(self, row: dict[str, float]) -> None:
        """Write one row of ``metrics.csv``; train_loss becomes the chart "loss" of the group "train"."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name.replace("_", "/", 1), value, int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


def require_tensorboard() -> None:
    """Raise ``UserError`` where TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise missing_package("tensorboard: true", "TensorBoard", "tensorboard") from None
