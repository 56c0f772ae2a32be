"""The training loop.

Every random number belongs to (seed, purpose, image or step): views to the image and the epoch, router noise and
dropout to the step. No generator's state has to be saved, and a resumed run on a CPU continues bit for bit.
"""

import contextlib
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.inputs.batches import Batch, Loading, RecipeByPlace, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.modality import IMAGE, sources
from moeprobe.inputs.views.base import PairView, Recipe
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.location import STATE
from moeprobe.models.config import TrainConfig, dump
from moeprobe.models.training import start, state
from moeprobe.models.training.optimize import clip, make_optimizer, make_schedule, total_steps
from moeprobe.models.training.parallel.layouts import gather_tensors, make_layout
from moeprobe.models.training.reporting import Board, Report, Reporter, start_record, training_record
from moeprobe.models.training.shared_step import SharedStep
from moeprobe.models.training.start import compile_model, start_model
from moeprobe.models.training.state import Averages
from moeprobe.models.training.tasks import Classification, Normalise, Reconstruction, training_views
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.files import absolute, display_path, is_there, write_csv, write_json, write_text
from moeprobe.runtime.seeds import generator
from moeprobe.runtime.signals import Postponed, StopRequest

# Reading a number off a device waits for it; every step would be too often, and a NaN may be found a little late.
_REPORT_EVERY = 10
_EVALUATIONS = 10


class Trainer:
    """One training run in one folder.

    Args:
        config: the run; ``model.num_classes`` None is taken from the data.
        train_data: labeled images to train on.
        val_data: labeled images to validate on.
        view: makes two random views of an image (the first is taken where one is wanted).
        folder: where checkpoints and metrics go.
        device: where to train.
        ranks: the processes that share each step, made of the same arguments; the first one writes. None = this one.

    Raises:
        UserError: the parts do not fit together.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        train_data: ImageDataset,
        val_data: ImageDataset,
        view: PairView,
        folder: Path,
        device: torch.device,
        ranks: Ranks | Alone | None = None,
    ) -> None:
        self.ranks = ranks or Alone()
        self.writes = self.ranks.rank == 0
        self.class_names = start.check_data(config, train_data, val_data)
        self.config = config
        self.model_config = config.model.model_copy(update={"num_classes": len(self.class_names)})
        self.folder, self.device = absolute(folder), device
        self.train_data, self.val_data, self.view = train_data, val_data, view
        self.objective = start.make_objective(config)
        # An incomplete last batch is dropped, see ``training_batches``.
        self.steps_per_epoch = len(train_data) // config.batch_size
        self.total_steps = total_steps(
            steps=config.steps, epochs=config.epochs, num_images=len(train_data), batch_size=config.batch_size
        )
        self.evaluate_every = config.evaluate_every or max(1, self.total_steps // _EVALUATIONS)

        self.model, self.start = start_model(config, self.model_config, self.class_names)
        self.layout = make_layout(config, self.model, self.ranks, device=device)
        self.model.to(device).train()
        self.normalise = Normalise(self.model_config).to(device)
        self.framing = Framing(self.model.patch_embed.img_size[0], self.model_config.crop_fraction)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps=self.total_steps)
        self.step = 0
        self.best_score: float | None = None
        task = Classification if config.mae is None else Reconstruction
        self.task = task(config, self.model, self.objective)
        self.stop_request = StopRequest(waits=self.layout.sharded and self.ranks.size > 1)
        self.share = SharedStep(self.task, self.normalise, self.layout, stop_request=self.stop_request)
        self.averages = Averages()
        self.clock = Clock(device)
        self.history: list[dict[str, float]] = []
        if config.compile:
            compile_model(self.model)

    def run(
        self, report: Callable[[Report], None] = lambda _: None, *, draw: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Train to the end and return the summary.

        Args:
            report: called now and then with where the run is.
            draw: called when ``metrics.csv`` is complete, before the run is marked as finished.

        Ctrl-C at any moment (on the command line SIGTERM and SIGHUP too) leaves a run that can be resumed exactly; a
        loss that is no number stops with a sentence and leaves the last checkpoints as they were.

        Raises:
            UserError: the loss is not finite.
        """
        shows = self.config.tensorboard and self.writes
        board = Board(self.folder / "tensorboard", step=self.step) if shows else None
        if self.writes:
            # Written first, so that a run that dies early still says what it was.
            write_text(self.folder / "config.yaml", dump(self.config))
        size = self.config.batch_size
        reporter = Reporter(report, first=self.step, total_steps=self.total_steps, batch_size=size)
        self.clock.start()
        try:
            with self.stop_request:
                return self._run(board, reporter, draw)
        except KeyboardInterrupt as error:
            # A second Ctrl-C while the state is saved must not cut the file short.
            with Postponed():
                self._leave(error)
            raise
        finally:
            if board is not None:
                board.close()

    def _run(self, board: Board | None, reporter: Reporter, draw: Callable[[], None]) -> dict[str, Any]:
        # A run that was interrupted in an evaluation begins with it.
        if self._evaluate_if_due(board):
            reporter.report(self.step, self.history[-1], evaluated=True)
        for batch in self.batches():
            with self.clock.step():
                values = self.train_step(batch)
            if self.share.must_stop():
                self.stop_request.acknowledge()
            if self.step % _REPORT_EVERY == 0 or self.step == self.total_steps:
                self._check(values["loss"])
                self.clock.read()
                numbers = {name: float(value) for name, value in values.items()} | self._learning_rate()
                reporter.report(self.step, numbers)
            if self._evaluate_if_due(board):
                reporter.report(self.step, self.history[-1], evaluated=True)
        with Postponed():
            return self._finish(reporter.rate(self.step), draw)

    def _leave(self, error: KeyboardInterrupt) -> None:
        """Leave a run that can be resumed, and say so; of parts of a state all processes write theirs, or none."""
        if self.writes and is_there(self.folder / "finished.json"):
            error.add_note(f"The run in {display_path(self.folder)} is finished.")
        elif self.stop_request.acknowledged or (self.writes and not self.stop_request.waits):
            # A state with a NaN in it would be resumed into a dead run.
            self._check(*self.averages.sums.values(), *self.model.parameters())
            self._save_state()
            if self.writes:
                progress = (
                    f"Step {self.step:,} of {self.total_steps:,} is saved in {display_path(self.folder)}"
                )
                error.add_note(f"{progress}; the same command continues from there.")

    def resume(self) -> None:
        """Go on from ``state.safetensors``.

        Raises:
            UserError: there is no such file, or it is of another run.
        """
        path = self.folder / STATE
        parts = (self.layout, self.model, self.optimizer)
        self.averages, description = state.load(path, *parts, device=self.device)
        start.check_same_images(
            description["train_images"], len(self.train_data), data=self.config.data.name, folder=self.folder
        )
        self.step = description["step"]
        self.best_score = description["best_accuracy"]
        self.history = description["history"]
        self.clock.restore(description["clock"])

    def time_steps(self, count: int) -> float:
        """Return the seconds of a step with its data, from ``count`` steps after a first one; they use the run up."""
        begun, number = time.perf_counter(), 0
        for number, batch in enumerate(self.batches()):
            self.train_step(batch)["loss"].item()  # read, so that a device has done what was asked of it
            if number == 0 and self.step < self.total_steps:
                # The first step compiles and allocates; it is not counted.
                begun = time.perf_counter()
            if number == count:
                break
        return (time.perf_counter() - begun) / max(number, 1)

    def batches(self) -> Iterator[Batch]:
        """Yield the remaining steps of the run."""
        if self.step < self.total_steps:
            yield from training_batches(
                self.config,
                self.train_data,
                self.view,
                self.framing,
                steps=range(self.step, self.total_steps),
                part=(self.ranks.rank, self.ranks.size),
                pin_memory=self.device.type == "cuda",
            )

    def train_step(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update and return its reported values."""
        self.schedule.step_update(self.step)
        with self.ranks.watching():
            values = self.share(batch, step=self.step, device=self.device)
            clip(self.model, norm=self.config.optimizer.clip_norm, measure=self.layout.norm)
        # One unit: a signal between the update and the count would make the resumed run repeat a step.
        with Postponed():
            self.optimizer.step()
            self.averages.add(values)
            self.step += 1
        return values

    def _check(self, *values: Tensor) -> None:
        start.check_finite(values, step=self.step, folder=self.folder)

    def _learning_rate(self) -> dict[str, float]:
        return {"learning_rate": float(self.optimizer.param_groups[0]["lr"])}

    def _evaluate_if_due(self, board: Board | None) -> bool:
        """Evaluate where it is time to; returns whether it was."""
        evaluated = self.history[-1]["step"] if self.history else 0
        is_due = self.step % self.evaluate_every == 0 or self.step == self.total_steps
        if not is_due or self.step <= evaluated:
            return False
        self._evaluate()
        if board is not None:
            board.write(self.history[-1])
        return True

    def _evaluate(self) -> None:
        self._check(*self.averages.sums.values(), *self.model.parameters())
        validation = self.task.validate(
            self.val_data, self.framing, normalise=self.normalise, device=self.device, layout=self.layout
        )
        self._check(torch.tensor(validation["val_loss"]))
        train = {f"train_{name}": value for name, value in self.averages.means().items()}
        row = {"step": self.step, "epoch": self.step / self.steps_per_epoch} | self._learning_rate()
        with Postponed():
            self.history.append(row | train | validation)
            self.averages = Averages()
            score = self.task.score(validation)
            better = self.best_score is None or score > self.best_score
            self.best_score = score if better else self.best_score
            # All processes take part in gathering, also those that do not write.
            weights = gather_tensors(self.layout, self.model.state_dict())
            if self.writes:
                write_csv(self.folder / "metrics.csv", pd.DataFrame(self.history))
                for which in ("last", "best") if better else ("last",):
                    self._save(which, weights)
            # At the end there is nothing to resume.
            if self.step < self.total_steps:
                self._save_state()

    def _save(self, which: str, weights: dict[str, Tensor]) -> None:
        accuracy = self.history[-1].get("val_accuracy")
        training = start_record(self.train_data, self.start) | training_record(
            self.config, step=self.step, total_steps=self.total_steps, val_accuracy=accuracy
        )
        checkpoint.save(
            self.folder / f"{which}.safetensors",
            self.model,
            config=self.model_config,
            training=training,
            class_names=self.class_names,
            parameters=weights,
        )

    def _save_state(self) -> None:
        now = {"step": self.step, "best_accuracy": self.best_score, "history": self.history}
        description = now | {"train_images": len(self.train_data), "clock": self.clock.state()}
        parts = (self.layout, self.model, self.optimizer)
        state.save(self.folder / STATE, *parts, self.averages, self.start | description)

    def _finish(self, images_per_second: float, draw: Callable[[], None]) -> dict[str, Any]:
        """Leave a finished run; killed before the mark it continues from its state, after it only the state is left."""
        assert self.best_score is not None
        summary: dict[str, Any] = {
            "name": self.config.name,
            "steps": self.total_steps,
            **self.task.summary(self.history[-1], self.best_score),
            "validated_on": sources(len(self.val_data), IMAGE, data=self.config.data.source, split="val"),
            "images_per_second": images_per_second,
        }
        summary |= self.clock.summary() | start_record(self.train_data, self.start)
        if self.writes:
            draw()
            write_json(self.folder / "finished.json", summary)
            state.discard(self.folder)
        return summary


# How long training takes: every step by itself, without data and evaluations, and the run as a whole.
#
# On a GPU a step has only been asked for when the call returns, so two events on the device's own queue time it, and
# they are read where its numbers are read anyway.

# Durations kept for the median: the last ones, so that the state of a long run stays small.
_KEPT = 1000


class Clock:
    """The durations of a run's steps and of the run; they are kept through interruptions by ``state`` and ``restore``.

    Args:
        device: where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[float] = deque(maxlen=_KEPT)
        self._pending: list[tuple[Any, Any]] = []
        self._before = 0.0
        self._started = time.perf_counter()

    def start(self) -> None:
        """Begin to count the run's time; restored time is counted already."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time one step."""
        if self._device.type == "cpu":
            begun = time.perf_counter()
            yield
            self._steps.append(time.perf_counter() - begun)
            return
        kind = torch.cuda.Event if self._device.type == "cuda" else torch.mps.event.Event
        first, last = kind(enable_timing=True), kind(enable_timing=True)
        first.record()
        yield
        last.record()
        self._pending.append((first, last))

    def read(self) -> None:
        """Take in the steps that a device has timed; waits for them."""
        for first, last in self._pending:
            last.synchronize()
            self._steps.append(first.elapsed_time(last) / 1000)
        self._pending.clear()

    @property
    def seconds(self) -> float:
        """Time of the run so far, everything included: steps, data, evaluations, files."""
        return self._before + time.perf_counter() - self._started

    def state(self) -> dict[str, Any]:
        """Return, as JSON, the data that an interrupted run needs to continue its counts."""
        self.read()
        return {"seconds": self.seconds, "steps": [float(f"{value:.4g}") for value in self._steps]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._before = state["seconds"]
        self._steps.extend(state["steps"])

    def summary(self) -> dict[str, Any]:
        """Return the median step, how many it is of, and the time of the run, in seconds; and on what."""
        self.read()
        return {
            "step_seconds": statistics.median(self._steps),
            "timed_steps": len(self._steps),
            "training_seconds": self.seconds,
            "device": device_name(self._device),
        }


def device_name(device: torch.device) -> str:
    """Return the name of the device that a time was measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


# Which images a training takes, in which order: each epoch is a fresh permutation.


def training_batches(
    config: TrainConfig,
    data: ImageDataset,
    view: PairView,
    framing: Framing,
    *,
    steps: range,
    part: tuple[int, int],
    pin_memory: bool,
) -> Iterator[Batch]:
    """Yield the training data of some steps of a run: the whole batches, or one ``part`` (number, of) of each.

    An incomplete last batch of an epoch is dropped. One loader serves all epochs: steps would wait for its processes
    to start at each of them.
    """
    size = config.batch_size // part[1]
    order = _Order(config.seed, len(data), config.batch_size, steps=steps, part=part)
    views = partial(
        training_views, view=view, framing=framing, seed=config.seed, count=config.views_per_image
    )
    yield from batches(
        data,
        order,
        RecipeByPlace(partial(_of_epoch, views, order)),
        loading=Loading(size, config.data.workers, pin_memory=pin_memory),
    )


class _Order:
    """The numbers of the images of some steps, one after the other: all of each step, or one part of them.

    A permutation is drawn when its epoch comes: all of them together may not fit into memory.
    """

    def __init__(
        self, seed: int, num_images: int, batch_size: int, *, steps: range, part: tuple[int, int]
    ) -> None:
        self._seed, self._num_images, self._batch_size = seed, num_images, batch_size
        self._per_epoch = num_images // batch_size
        self._steps = steps
        self._size = batch_size // part[1]
        self._start = part[0] * self._size
        self._drawn: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._steps) * self._size

    def __getitem__(self, position: int) -> int:
        epoch = self.epoch(position)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, generator(self._seed, "order", draw=epoch).permutation(self._num_images)
        batch = self._steps[position // self._size] % self._per_epoch
        return int(self._drawn[1][batch * self._batch_size + self._start + position % self._size])

    def epoch(self, position: int) -> int:
        """Return the epoch of a place."""
        return self._steps[position // self._size] // self._per_epoch


def _of_epoch(views: partial[list[Sample]], order: _Order, position: int) -> Recipe:
    return partial(views, epoch=order.epoch(position))
