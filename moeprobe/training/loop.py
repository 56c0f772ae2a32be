"""The training loop.

Every random number belongs to (seed, purpose, image or step): views to the image and the epoch, router noise and
dropout to the step. Nothing of a generator's state has to be saved, and a resumed run on a CPU goes on bit for bit.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn

from moeprobe import config as configuration
from moeprobe.batches import Batch, batches
from moeprobe.catalog import OBJECTIVES
from moeprobe.config import ModelConfig, TrainConfig
from moeprobe.data.base import ImageDataset
from moeprobe.errors import UserError
from moeprobe.files import write_json, write_text
from moeprobe.geometry import PatchGrid
from moeprobe.nn.build import build_model
from moeprobe.nn.capture import capture, moe_layers
from moeprobe.seeds import generator, torch_seed
from moeprobe.tables import write_csv
from moeprobe.training import checkpoint
from moeprobe.training.evaluate import evaluate
from moeprobe.training.mixup import mixup
from moeprobe.training.objectives.base import Objective, Views
from moeprobe.training.optimise import make_optimizer, make_schedule, total_steps
from moeprobe.views.base import Framing, PairView, Sample

# Reading a number off a device waits for it; every step would be too often, and a NaN may be found a little late.
_REPORT_EVERY = 10
_EVALUATIONS = 10


@dataclass(frozen=True)
class Report:
    """Where a run is: for whoever shows it."""

    step: int
    total_steps: int
    values: dict[str, float]
    images_per_second: float


@dataclass
class _Averages:
    """Means of the reported values since the last evaluation."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, torch.zeros((), device=value.device)) + value
        self.count += 1

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.count for name, value in self.sums.items()} if self.count else {}


class _Normalise(nn.Module):
    """From [0, 1] to the model's input."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(config.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(config.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class Trainer:
    """One training run in one folder.

    Args:
        config: the run; ``model.num_classes`` None is taken from the data.
        train_data: labelled images to train on.
        val_data: labelled images to validate on.
        view: makes two random views of an image (the first is taken where one is wanted).
        folder: where checkpoints and metrics go.
        device: where to train.

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
    ) -> None:
        if train_data.class_names is None or val_data.class_names is None:
            raise UserError(f"{config.data.name} has no labels to train on.")
        model_config = config.model
        if model_config.num_classes is None:
            model_config = model_config.model_copy(update={"num_classes": train_data.num_classes})
        self.config = config
        self.model_config = model_config
        self.folder = folder
        self.device = device
        self.train_data, self.val_data, self.view = train_data, val_data, view
        self.class_names = train_data.class_names
        self.objective: Objective = _make_objective(config)
        self.steps_per_epoch = len(train_data) // config.batch_size
        self.total_steps = total_steps(
            steps=config.steps, epochs=config.epochs, num_images=len(train_data), batch_size=config.batch_size
        )
        self.evaluate_every = config.evaluate_every or max(1, self.total_steps // _EVALUATIONS)

        torch.manual_seed(torch_seed(config.seed, "initialise"))
        self.model = build_model(model_config)
        if config.initialise is not None:
            checkpoint.initialise_from(
                self.model, config.initialise.checkpoint, keep_head=config.initialise.keep_head
            )
        _check_groups(self.model, config)
        self.model.to(device).train()
        self.normalise = _Normalise(model_config).to(device)
        rows, columns = self.model.patch_embed.grid_size
        self.grid = PatchGrid(rows, columns, self.model.patch_embed.patch_size[0])
        self.framing = Framing(self.model.patch_embed.img_size[0], model_config.crop_fraction)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps=self.total_steps)
        self.step = 0
        self.best_accuracy = -1.0
        self.history: list[dict[str, float]] = []
        if config.compile:
            _compile(self.model)

    def run(self, report: Callable[[Report], None] = lambda _: None) -> dict[str, Any]:
        """Train to the end and return the summary.

        Ctrl-C leaves a resumable run; a loss that is no number stops with a sentence and leaves the last checkpoints
        as they were.

        Raises:
            UserError: the loss is not finite.
        """
        write_text(self.folder / "config.yaml", configuration.dump(self.config))
        averages = _Averages()
        started, images_done = time.perf_counter(), 0
        try:
            for batch in self._batches():
                values = self._train_step(batch)
                averages.add(values)
                images_done += len(batch.image_ids)
                self.step += 1
                last = self.step == self.total_steps
                if self.step % _REPORT_EVERY == 0 or last:
                    self._check_finite(values)
                    rate = images_done / (time.perf_counter() - started)
                    shown = {name: float(value) for name, value in values.items()}
                    report(Report(self.step, self.total_steps, shown | self._learning_rate(), rate))
                if self.step % self.evaluate_every == 0 or last:
                    self._check_finite(values)
                    self._evaluate(averages.means())
                    averages = _Averages()
        except KeyboardInterrupt:
            self._save_state()
            raise
        return self._finish(images_done / (time.perf_counter() - started))

    def resume(self) -> None:
        """Go on from ``state.safetensors``.

        Raises:
            UserError: there is no such file, or it is of another run.
        """
        tensors, description = checkpoint.read_tensors(self.folder / "state.safetensors")
        prefix = "model/"
        self.model.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )
        state = self.optimizer.state_dict()
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                index, _, key = rest.partition("/")
                state["state"].setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict(state)
        self.step = description["step"]
        self.best_accuracy = description["best_accuracy"]
        self.history = description["history"]

    def _batches(self) -> Iterator[Batch]:
        """Yield what is left of the run; each epoch is a fresh permutation, an incomplete last batch is dropped."""
        size = self.config.batch_size
        while self.step < self.total_steps:
            epoch, offset = divmod(self.step, self.steps_per_epoch)
            order = generator(self.config.seed, "order", draw=epoch).permutation(len(self.train_data))
            count = min(self.steps_per_epoch - offset, self.total_steps - self.step)
            chosen = order[offset * size : (offset + count) * size]
            recipe = partial(
                _training_views,
                view=self.view,
                framing=self.framing,
                seed=self.config.seed,
                epoch=epoch,
                count=self.config.views_per_image,
            )
            yield from batches(
                self.train_data,
                chosen.tolist(),
                recipe,
                batch_size=size,
                workers=self.config.data.workers,
                pin_memory=self.device.type == "cuda",
            )

    def _train_step(self, batch: Batch) -> dict[str, Tensor]:
        torch.manual_seed(torch_seed(self.config.seed, "step", draw=self.step))
        images = torch.stack(batch.views, dim=1).flatten(0, 1).to(self.device, non_blocking=True)
        labels = batch.labels.repeat_interleave(len(batch.views)).to(self.device, non_blocking=True)
        targets = nn.functional.one_hot(labels, len(self.class_names)).float()
        images = self.normalise(images)
        if self.config.mixup > 0:
            rng = generator(self.config.seed, "mixup", draw=self.step)
            images, targets = mixup(images, targets, concentration=self.config.mixup, rng=rng)
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.amp),
            capture(self.model) as decisions,
        ):
            logits = self.model(images)
        main = _supervised_loss(logits.float(), targets, self.config.loss)
        views = Views(batch.to_source, batch.source_size, self.grid, self.model.num_prefix_tokens)
        terms = self.objective.terms(decisions, views)
        weighted = [term.weight * term.value for term in terms.values() if term.weight > 0]
        total = main + torch.stack(weighted).sum() if weighted else main
        self.schedule.step_update(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if self.config.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip_norm)
        self.optimizer.step()
        accuracy = (logits.argmax(1) == labels).float().mean()
        values = {"loss": total, "main_loss": main, "accuracy": accuracy}
        values |= {name: term.value for name, term in terms.items()}
        return {name: value.detach() for name, value in values.items()}

    def _check_finite(self, values: dict[str, Tensor]) -> None:
        if not bool(torch.isfinite(values["loss"])):
            raise UserError(
                f"The loss stopped being a number by step {self.step}; the checkpoints in {self.folder} are those of "
                "the evaluations before it. Lower optimizer.learning_rate or set optimizer.clip_norm, and start again."
            )

    def _learning_rate(self) -> dict[str, float]:
        return {"learning_rate": float(self.optimizer.param_groups[0]["lr"])}

    def _evaluate(self, train_means: dict[str, float]) -> None:
        accuracy, loss = evaluate(
            self.model,
            self.val_data,
            partial(_clean_view, framing=self.framing),
            normalise=self.normalise,
            batch_size=self.config.eval_batch_size,
            workers=self.config.data.workers,
            device=self.device,
        )
        train = {f"train_{name}": value for name, value in train_means.items()}
        row = {"step": self.step, "epoch": self.step / self.steps_per_epoch} | self._learning_rate()
        self.history.append(row | train | {"val_accuracy": accuracy, "val_loss": loss})
        write_csv(self.folder / "metrics.csv", pd.DataFrame(self.history))
        self._save("last")
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self._save("best")
        if self.step < self.total_steps:
            self._save_state()

    def _save(self, which: str) -> None:
        training = {
            "name": self.config.name,
            "group": self.config.group,
            "seed": self.config.seed,
            "data": self.config.data.name,
            "objective": self.config.objective.model_dump(),
            "view": self.config.view.model_dump(),
            "step": self.step,
            "total_steps": self.total_steps,
            "val_accuracy": self.history[-1]["val_accuracy"],
        }
        checkpoint.save(
            self.folder / f"{which}.safetensors",
            self.model,
            config=self.model_config,
            training=training,
            class_names=self.class_names,
        )

    def _save_state(self) -> None:
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
        description = {"step": self.step, "best_accuracy": self.best_accuracy, "history": self.history}
        checkpoint.write_tensors(self.folder / "state.safetensors", tensors, description)

    def _finish(self, images_per_second: float) -> dict[str, Any]:
        summary = {
            "name": self.config.name,
            "steps": self.total_steps,
            "val_accuracy": self.history[-1]["val_accuracy"],
            "best_val_accuracy": self.best_accuracy,
            "images_per_second": images_per_second,
        }
        write_json(self.folder / "finished.json", summary)
        (self.folder / "state.safetensors").unlink(missing_ok=True)
        return summary


def _make_objective(config: TrainConfig) -> Objective:
    kind = OBJECTIVES.get(config.objective.name)
    if kind.needs_pairs and config.views_per_image != 2:
        raise UserError(
            f"The objective {config.objective.name!r} compares two views: set views_per_image to 2."
        )
    if kind.needs_pairs and config.mixup > 0:
        raise UserError(
            f"The objective {config.objective.name!r} compares patches of one image: set mixup to 0."
        )
    try:
        return kind(**config.objective.parameters)
    except TypeError as error:
        raise UserError(
            f"The objective {config.objective.name!r} does not take these values: {error}."
        ) from None


def _check_groups(model: nn.Module, config: TrainConfig) -> None:
    rows = config.batch_size * config.views_per_image
    for name, layer in moe_layers(model).items():
        if rows % layer.group_images and rows > layer.group_images:
            raise UserError(
                f"A batch of {config.batch_size} images x {config.views_per_image} views cannot be cut into groups of "
                f"{layer.group_images} ({name}); change batch_size or model.group_images."
            )


def _supervised_loss(logits: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Softmax cross-entropy, or sigmoid cross-entropy summed over the classes; mean over the rows."""
    if kind == "softmax":
        return nn.functional.cross_entropy(logits, targets)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1).mean()


def _compile(model: Any) -> None:
    """Compile what does not route: routers stay eager, so that what they decide can be captured."""
    for block in model.blocks:
        block.attn.compile()
        (block.mlp.experts if hasattr(block.mlp, "experts") else block.mlp).compile()


def _training_views(
    image: Image.Image, image_id: str, *, view: PairView, framing: Framing, seed: int, epoch: int, count: int
) -> list[Sample]:
    rng = generator(seed, "training view", image_id, epoch)
    return list(view.pair(image, framing=framing, rng=rng))[:count]


def _clean_view(image: Image.Image, image_id: str, *, framing: Framing) -> list[Sample]:
    return [framing.clean(image)]
