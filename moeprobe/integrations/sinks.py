"""Where a monitor writes: JSON lines, TensorBoard, Weights & Biases, MLflow, or a class of your own.

A program of its own is imported when its sink is made; each is an extra of moeprobe.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.integrations.arguments import checked
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import expanded


@dataclass(frozen=True)
class RoutingRecord:
    """What is measured at one step of a training.

    Attributes:
        step: of the training.
        values: by key, e.g. ``routing/load_entropy``; keys without a value at this step are not in it.
        intervals: by key the 95 % interval over inputs; keys without one are not in it.
        layers: by layer its numbers, as JSON has them.
        inputs: how many images or texts were measured.
        seconds: what the measurement took.
    """

    step: int
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    layers: Mapping[str, Mapping[str, Any]]
    inputs: int
    seconds: float


class Sink(ABC):
    """Where records go."""

    def open(self) -> None:  # noqa: B027  (a sink may have nothing to begin)
        """Begin, right before the first record; raises ``UserError`` where nothing can be written."""

    @abstractmethod
    def write(self, record: RoutingRecord) -> None:
        """Write a record; steps grow from one to the next."""

    def close(self) -> None:  # noqa: B027  (a sink may have nothing to finish)
        """Finish writing, when the training has ended."""


@checked
class JsonLines(Sink):
    """A file with a line per record: all that was measured, with intervals and layer by layer.

    Args:
        path: a file, made with its folder; lines of an earlier run stay.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise UserError(f"Cannot write {self.path}: {error.strerror}.") from error

    def write(self, record: RoutingRecord) -> None:
        """Add a line, which is complete when this returns."""
        line = {
            "step": record.step,
            **record.values,
            "intervals": record.intervals,
            "layers": record.layers,
            "inputs": record.inputs,
            "seconds": record.seconds,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_plain(line), allow_nan=False) + "\n")


@checked
class TensorBoard(Sink):
    """Event files of TensorBoard (extra ``tensorboard``).

    Args:
        folder: where event files go.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        _require("tensorboard", "TensorBoard", sink=self)
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(expanded(folder))

    def write(self, record: RoutingRecord) -> None:
        """Add a point to the chart of each key."""
        for key, value in record.values.items():
            self._writer.add_scalar(key, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


@checked
class WeightsAndBiases(Sink):
    """A run of Weights & Biases (extra ``wandb``), online or offline as the run is.

    The charts have an axis of their own, ``routing/step``: the run's own step may be ahead of it.

    Args:
        run: what ``wandb.init`` returned; None = the run that is active at the first record.

    Raises:
        UserError: the package is not installed.
    """

    def __init__(self, run: Any = None) -> None:
        self._wandb = _require("wandb", "Weights & Biases", sink=self)
        self._run = run

    def open(self) -> None:
        """Find the active run, which trainers start late; raises ``UserError`` where there is none."""
        self._run = self._wandb.run if self._run is None else self._run
        if self._run is None:
            raise UserError(
                "There is no active run of Weights & Biases; call wandb.init first, or hand a run in."
            )
        self._run.define_metric("routing/step")
        self._run.define_metric("routing/*", step_metric="routing/step")

    def write(self, record: RoutingRecord) -> None:
        """Log the keys together with their step."""
        self._run.log({**record.values, "routing/step": record.step})


@checked
class Mlflow(Sink):
    """A run of MLflow (extra ``mlflow``), on a server or in a store of files.

    Args:
        run_id: of an existing run; None = the run that is active at the first record.
        tracking_uri: of the store, e.g. ``file:mlruns``; None = the present one.

    Raises:
        UserError: MLflow is not installed.
    """

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None) -> None:
        self._mlflow = _require("mlflow", "MLflow", sink=self)
        self._run_id, self._tracking_uri = run_id, tracking_uri

    def open(self) -> None:
        """Find the active run, which trainers start late; raises ``UserError`` where there is none."""
        run = self._mlflow.active_run()
        if self._run_id is None and run is None:
            raise UserError(
                "There is no active run of MLflow; call mlflow.start_run first, or name a run_id."
            )
        self._run_id = self._run_id or run.info.run_id
        self._client = self._mlflow.MlflowClient(self._tracking_uri)

    def write(self, record: RoutingRecord) -> None:
        """Log the keys as metrics of the step."""
        for key, value in record.values.items():
            self._client.log_metric(self._run_id, key, value, step=record.step)


def sinks_of(sinks: Sink | Sequence[Sink]) -> list[Sink]:
    """Return one sink or several as a list; raises ``UserError`` where something else is given."""
    several = [sinks] if isinstance(sinks, Sink) else sinks
    if not isinstance(several, Sequence) or not all(isinstance(sink, Sink) for sink in several):
        raise UserError(f"{option('sinks')} takes sinks, e.g. JsonLines('routing.jsonl'); got {sinks!r}.")
    return list(several)


def _require(package: str, title: str, *, sink: Sink) -> Any:
    """Return an optional package; raises ``UserError`` where it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        raise missing_package(type(sink).__name__, title, package) from None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; there is no NaN in JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
