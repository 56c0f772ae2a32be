"""Where a monitor writes: TensorBoard, Weights & Biases, MLflow, or a class of your own; ``json_lines`` has the file.

A program of its own is imported when its sink is made; each is an extra of moeprobe.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.integrations.arguments import check_class
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import expand


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
    """Where records go.

    ``open``, ``write`` and ``close`` are called in other threads than the training's, one call after the other. What
    they raise is a warning, and the record is lost; after an error of ``attach`` or ``open`` they are called again
    with the next record.
    """

    def attach(self) -> None:  # noqa: B027  (a sink may have nothing to look up)
        """Look up, before ``open``, what the training's own thread knows; be quick, since the training waits."""

    def open(self) -> None:  # noqa: B027  (a sink may have nothing to begin)
        """Begin, right before the first record; raises ``UserError`` where nothing can be written."""

    @abstractmethod
    def write(self, record: RoutingRecord) -> None:
        """Write a record; steps grow from one to the next."""

    def close(self) -> None:  # noqa: B027  (a sink may have nothing to finish)
        """Finish writing, when the training has ended."""


@check_class
class TensorBoard(Sink):
    """Event files of TensorBoard (extra ``tensorboard``).

    Args:
        folder: where event files go.

    Raises:
        UserError: TensorBoard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        _require("tensorboard", "TensorBoard", sink=self)
        from torch.utils.tensorboard import SummaryWriter

        try:
            self._writer = SummaryWriter(expand(folder))
        except (OSError, ValueError) as error:
            raise cannot_write(folder, error) from error

    def write(self, record: RoutingRecord) -> None:
        """Add a point to the chart of each key."""
        for key, value in record.values.items():
            self._writer.add_scalar(key, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


@check_class
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
        self._given_run = run

    def attach(self) -> None:
        """Find the active run, which trainers start late; raises ``UserError`` where there is none."""
        self._run = self._wandb.run if self._given_run is None else self._given_run
        if self._run is None:
            raise UserError(
                "There is no active run of Weights & Biases; call wandb.init first, or hand a run in."
            )

    def open(self) -> None:
        """Give the charts their axis."""
        self._run.define_metric("routing/step")
        self._run.define_metric("routing/*", step_metric="routing/step")

    def write(self, record: RoutingRecord) -> None:
        """Log the keys together with their step."""
        self._run.log({**record.values, "routing/step": record.step})


@check_class
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
        self._given_run_id, self._tracking_uri = run_id, tracking_uri

    def attach(self) -> None:
        """Find the active run, which trainers start late; raises ``UserError`` where there is none."""
        self._run_id = self._given_run_id
        if self._run_id is None:
            # Each thread has its own.
            run = self._mlflow.active_run()
            if run is None:
                raise UserError(
                    "There is no active run of MLflow; call mlflow.start_run first, or name a run_id."
                )
            self._run_id = run.info.run_id

    def open(self) -> None:
        """Make the client."""
        self._client = self._mlflow.MlflowClient(self._tracking_uri)

    def write(self, record: RoutingRecord) -> None:
        """Log the keys as metrics of the step, in one request: where a server is away, each takes minutes."""
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        self._client.log_batch(
            self._run_id,
            metrics=[metric(key, value, now, record.step) for key, value in record.values.items()],
        )


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


def cannot_write(path: str | Path, error: OSError | ValueError) -> UserError:
    """Return that a path cannot be written, and why."""
    return UserError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.")
