"""The training loop.

Every random number belongs to (seed, purpose, image or step): views to the image and the epoch, router noise and
dropout to the step. Nothing of a generator's state has to be saved, and a resumed run on a CPU goes on bit for bit.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from moeprobe.inputs.batches import Batch
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing
from moeprobe.inputs.modality import IMAGE, sources
from moeprobe.inputs.views.base import PairView
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import TrainConfig, dump
from moeprobe.models.training import checks, sharded_state
from moeprobe.models.training.epochs import training_batches
from moeprobe.models.training.inputs import Normalise
from moeprobe.models.training.layouts import gathered, make_layout
from moeprobe.models.training.optimize import make_optimizer, make_schedule, total_steps
from moeprobe.models.training.reporting import Report, Reporter, start_record, training_record
from moeprobe.models.training.shared_step import SharedStep
from moeprobe.models.training.start import compile_model, start_model
from moeprobe.models.training.state import Averages
from moeprobe.models.training.step import clip
from moeprobe.models.training.tasks import Classification, Reconstruction
from moeprobe.models.training.tensorboard import Board
from moeprobe.models.training.timing import Clock
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.files import absolute, remove, shown, write_json, write_text
from moeprobe.runtime.signals.postponed import uninterrupted
from moeprobe.runtime.signals.wishes import Wish

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
        self.class_names = checks.check_data(config, train_data, val_data)
        self.config = config
        self.model_config = config.model.model_copy(update={"num_classes": len(self.class_names)})
        self.folder, self.device = absolute(folder), device
        self.train_data, self.val_data, self.view = train_data, val_data, view
        self.objective = checks.make_objective(config)
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
        self.wish = Wish(waits=self.layout.sharded and self.ranks.size > 1)
        self.share = SharedStep(self.task, self.normalise, self.layout, wish=self.wish)
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
            write_text(self.folder / "config.yaml", dump(self.config))
        size = self.config.batch_size
        reporter = Reporter(report, first=self.step, total_steps=self.total_steps, batch_size=size)
        self.clock.start()
        try:
            with self.wish:
                return self._run(board, reporter, draw)
        except KeyboardInterrupt as error:
            with uninterrupted():
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
            if self.share.end_is_wished():
                self.wish.grant()
            if self.step % _REPORT_EVERY == 0 or self.step == self.total_steps:
                self._check(values["loss"])
                self.clock.read()
                numbers = {name: float(one) for name, one in values.items()} | self._learning_rate()
                reporter.report(self.step, numbers)
            if self._evaluate_if_due(board):
                reporter.report(self.step, self.history[-1], evaluated=True)
        with uninterrupted():
            return self._finish(reporter.rate(self.step), draw)

    def _leave(self, error: KeyboardInterrupt) -> None:
        """Leave a run that can be resumed, and say so; of parts of a state all processes write theirs, or none."""
        if self.writes and (self.folder / "finished.json").exists():
            error.add_note(f"The run in {shown(self.folder)} is finished.")
        elif self.wish.granted or (self.writes and not self.wish.waits):
            self._check(*self.averages.sums.values(), *self.model.parameters())
            self._save_state()
            if self.writes:
                done = f"Step {self.step:,} of {self.total_steps:,} is saved in {shown(self.folder)}"
                error.add_note(f"{done}; the same command goes on from there.")

    def resume(self) -> None:
        """Go on from ``state.safetensors``.

        Raises:
            UserError: there is no such file, or it is of another run.
        """
        path = self.folder / "state.safetensors"
        parts = (self.layout, self.model, self.optimizer)
        self.averages, description = sharded_state.load(path, *parts, device=self.device)
        checks.check_same_images(
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
                begun = time.perf_counter()
            if number == count:
                break
        return (time.perf_counter() - begun) / max(number, 1)

    def batches(self) -> Iterator[Batch]:
        """Yield what is left of the run."""
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
        """Make one update and return what is reported of it."""
        self.schedule.step_update(self.step)
        with self.ranks.watching():
            values = self.share(batch, step=self.step, device=self.device)
            clip(self.model, norm=self.config.optimizer.clip_norm, measure=self.layout.norm)
        with uninterrupted():
            self.optimizer.step()
            self.averages.add(values)
            self.step += 1
        return values

    def _check(self, *values: Tensor) -> None:
        checks.check_finite(values, step=self.step, folder=self.folder)

    def _learning_rate(self) -> dict[str, float]:
        return {"learning_rate": float(self.optimizer.param_groups[0]["lr"])}

    def _evaluate_if_due(self, board: Board | None) -> bool:
        """Evaluate where it is time to; returns whether it was."""
        evaluated = self.history[-1]["step"] if self.history else 0
        due = self.step % self.evaluate_every == 0 or self.step == self.total_steps
        if not due or self.step <= evaluated:
            return False
        self._evaluate()
        if board is not None:
            board.write(self.history[-1])
        return True

    def _evaluate(self) -> None:
        self._check(*self.averages.sums.values(), *self.model.parameters())
        found = self.task.validate(
            self.val_data, self.framing, normalise=self.normalise, device=self.device, layout=self.layout
        )
        self._check(torch.tensor(found["val_loss"]))
        train = {f"train_{name}": value for name, value in self.averages.means().items()}
        row = {"step": self.step, "epoch": self.step / self.steps_per_epoch} | self._learning_rate()
        with uninterrupted():
            self.history.append(row | train | found)
            self.averages = Averages()
            score = self.task.score(found)
            better = self.best_score is None or score > self.best_score
            self.best_score = score if better else self.best_score
            weights = gathered(self.layout, self.model.state_dict())
            if self.writes:
                write_csv(self.folder / "metrics.csv", pd.DataFrame(self.history))
                for which in ("last", "best") if better else ("last",):
                    self._save(which, weights)
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
        sharded_state.save(self.folder / "state.safetensors", *parts, self.averages, self.start | description)

    def _finish(self, images_per_second: float, draw: Callable[[], None]) -> dict[str, Any]:
        """Leave a finished run; one killed before the mark goes on from its state, after it only that is left over."""
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
            remove(self.folder / "state.safetensors")
            sharded_state.remove_parts(self.folder)
        return summary
