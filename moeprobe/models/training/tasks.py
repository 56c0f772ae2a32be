"""What a training learns: to classify images, or to draw their hidden patches.

Axes: B rows of a batch, V visible patches.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import PairView
from moeprobe.models.config import ModelConfig, TrainConfig
from moeprobe.models.nn import mae
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training.guided import ByClass, DenseTeacher, Teacher, last_features
from moeprobe.models.training.mixup import mixup
from moeprobe.models.training.objectives.base import BatchViews, Objective, Term
from moeprobe.models.training.optimize import supervised_loss, total_loss
from moeprobe.models.training.parallel.layouts import ProcessLayout
from moeprobe.models.training.room import room
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.seeds import generator


class Task(ABC):
    """How a batch is measured, and how the model is validated.

    Args:
        config: of the training.
        model: that is trained; in whatever mode.
        objective: adds its terms to the loss.
    """

    def __init__(self, config: TrainConfig, model: VisionTransformer, objective: Objective) -> None:
        self.config, self.model, self.objective = config, model, objective

    @abstractmethod
    def rows(
        self, images: Tensor, labels: Tensor, *, num_views: int, step: int, ranks: Ranks | Alone
    ) -> tuple[Tensor, ...]:
        """Return the tensors that step ``step`` measures, normalized images ``(B, 3, H, W)`` first; a row per view.

        The rows may be one of equal parts of a batch, one for each of ``ranks``; random draws are the same for all.
        """

    @abstractmethod
    def measure(self, rows: tuple[Tensor, ...], views: BatchViews) -> dict[str, Tensor]:
        """Return the ``loss`` of some of these rows, and what else is reported."""

    @abstractmethod
    def judge(self, images: Tensor, labels: Tensor, image_ids: list[str]) -> dict[str, Tensor]:
        """Return numbers ``(B,)`` of normalized validation images, by name."""

    @staticmethod
    @abstractmethod
    def score(row: dict[str, float]) -> float:
        """Return the value of an evaluation that selects the best checkpoint: larger is better."""

    @staticmethod
    @abstractmethod
    def summary(row: dict[str, float], best: float) -> dict[str, float]:
        """Return what the run's end says of its last evaluation and its best score."""

    def validate(
        self,
        data: ImageDataset,
        framing: Framing,
        *,
        normalise: nn.Module,
        device: torch.device,
        layout: ProcessLayout,
    ) -> dict[str, float]:
        """Return the means of ``judge`` over clean images, ``val_`` before their names; the model keeps its mode.

        Images that share a group (and so a capacity) follow one another in the split; the remainder at its end is a
        smaller group. The size of batches is rounded to whole groups, so it changes nothing but speed. Each process
        takes some of the batches. Where processes run the model in step, those with fewer passes run it on an empty
        image.
        """
        ranks, model = layout.ranks, self.model
        was_training = model.training
        model.eval()
        group = math.lcm(*(layer.group_images for layer in moe_layers(model).values()))
        batch_size = max(group, self.config.eval_batch_size // group * group)
        loading = Loading(batch_size, self.config.data.workers)
        starts = range(0, len(data), batch_size)
        batches_of = [
            starts[len(starts) * rank // ranks.size : len(starts) * (rank + 1) // ranks.size]
            for rank in range(ranks.size)
        ]
        local_starts = batches_of[ranks.rank]
        images_of = (
            range(local_starts[0], min(local_starts[-1] + batch_size, len(data)))
            if local_starts
            else range(0)
        )
        sums: dict[str, float] = {}
        # What is sent between processes is kept for the next step, which an inference tensor cannot be.
        with torch.no_grad() if layout.in_step else torch.inference_mode(), ranks.watching():
            for batch in batches(data, images_of, partial(clean_view, framing=framing), loading=loading):
                labels = batch.labels.to(device)
                images = normalise(batch.views[0].to(device))
                parts = [
                    self.judge(images[first:last], labels[first:last], batch.image_ids[first:last])
                    for first, last in _whole_groups(len(images), group)
                ]
                for name in parts[0]:
                    values = torch.cat([part[name] for part in parts])
                    sums[name] = sums.get(name, 0.0) + float(values.sum())
            if layout.in_step:
                passes = [
                    sum(
                        len(_whole_groups(min(batch_size, len(data) - start), group)) for start in rank_starts
                    )
                    for rank_starts in batches_of
                ]
                for _ in range(max(passes) - passes[ranks.rank]):
                    self.judge(*_empty(model, device))
        model.train(was_training)
        process_sums = ranks.exchange(sums)
        # A process without a batch of its own has no names.
        return {
            f"val_{name}": sum(sums_of.get(name, 0.0) for sums_of in process_sums) / len(data)
            for name in max(process_sums, key=len)
        }

    def _values(
        self,
        main: Tensor,
        decisions: Any,
        views: BatchViews,
        taught: Mapping[str, Term] = MappingProxyType({}),
    ) -> dict[str, Tensor]:
        # A dense model has no routers, hence no decisions to regularize.
        terms = (self.objective.terms(decisions, views) if decisions else {}) | dict(taught)
        values = {"loss": total_loss(main, terms), "main_loss": main}
        return values | {name: term.value for name, term in terms.items()} | room(decisions)


class Classification(Task):
    """Class scores, against labels that may be mixed up."""

    def __init__(self, config: TrainConfig, model: VisionTransformer, objective: Objective) -> None:
        super().__init__(config, model, objective)
        self._by_class = ByClass(model, config.route_by_class)
        self._teacher = Teacher(config, model) if config.kl_weight else None
        self._dense = DenseTeacher(config, model) if config.feature_weight else None

    def rows(
        self, images: Tensor, labels: Tensor, *, num_views: int, step: int, ranks: Ranks | Alone
    ) -> tuple[Tensor, ...]:
        """Return images, labels and soft targets ``(B, classes)``, mixed up."""
        targets = nn.functional.one_hot(labels.clamp_min(0), self.model.num_classes).float()
        if self.config.mixup > 0:
            rng = generator(self.config.seed, "mixup", draw=step)
            images, targets = mixup(
                images,
                targets,
                concentration=self.config.mixup,
                rng=rng,
                num_views=num_views,
                following=ranks.following,
            )
        return images, labels, targets

    def measure(self, rows: tuple[Tensor, ...], views: BatchViews) -> dict[str, Tensor]:
        """Return the supervised loss with the terms of the objective, and the accuracy.

        Where only a share of the images has labels, loss and accuracy use the rows with a label (from 0), and
        are 0 for a batch without any; all other terms use all rows.
        """
        images, labels, targets = rows
        watching: AbstractContextManager[list[Tensor]] = (
            last_features(self.model) if self._dense else nullcontext([])
        )
        with (
            torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.amp),
            self._by_class(self.model, labels),
            capture(self.model) as decisions,
            watching as features,
        ):
            logits = self.model(images)
            taught = {}
            if self._teacher is not None:
                divergence = self._teacher.divergence(images, decisions)
                taught["gate_divergence"] = Term(divergence, self.config.kl_weight)
            if self._dense is not None:
                distance = self._dense.distance(images, features[0])
                taught["feature_distance"] = Term(distance, self.config.feature_weight)
        scores = logits
        if self.config.data.labeled is not None:
            scores, labels, targets = (values[labels >= 0] for values in (logits, labels, targets))
        main = (
            supervised_loss(scores.float(), targets, self.config.loss)
            if len(labels)
            else 0.0 * logits.float().sum()
        )
        hits = (scores.argmax(1) == labels).float()
        values = self._values(main, decisions, views, taught)
        first = {name: values.pop(name) for name in ("loss", "main_loss")}
        return first | {"accuracy": hits.mean() if len(labels) else hits.sum()} | values

    def judge(self, images: Tensor, labels: Tensor, image_ids: list[str]) -> dict[str, Tensor]:
        """Return whether images are classified rightly, and the cross-entropy; routed by class where training is."""
        with self._by_class(self.model, labels):
            logits = self.model(images).float()
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        return {"accuracy": (logits.argmax(1) == labels).float(), "loss": loss}

    @staticmethod
    def score(row: dict[str, float]) -> float:
        """Return the accuracy."""
        return row["val_accuracy"]

    @staticmethod
    def summary(row: dict[str, float], best: float) -> dict[str, float]:
        """Return the accuracies."""
        return {"val_accuracy": row["val_accuracy"], "best_val_accuracy": best}


class Reconstruction(Task):
    """Masked autoencoding; masks belong to the step in training, and to the image in validation."""

    def rows(
        self, images: Tensor, labels: Tensor, *, num_views: int, step: int, ranks: Ranks | Alone
    ) -> tuple[Tensor, ...]:
        """Return images and the patches ``(B, V)`` that are seen of each."""
        rng = generator(self.config.seed, "mask", draw=step)
        visible = self._visible(rng, len(images) * ranks.size)
        local_visible = visible[ranks.rank * len(images) : (ranks.rank + 1) * len(images)]
        return images, local_visible.to(images.device)

    def measure(self, rows: tuple[Tensor, ...], views: BatchViews) -> dict[str, Tensor]:
        """Return the loss of the hidden patches, with the terms of the objective on what the routers decided."""
        images, visible = rows
        with (
            torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.amp),
            capture(self.model) as decisions,
        ):
            pixels = self._reconstruct(images, visible)
        return self._values(mae.reconstruction_loss(pixels, images, visible).mean(), decisions, views)

    def judge(self, images: Tensor, labels: Tensor, image_ids: list[str]) -> dict[str, Tensor]:
        """Return the loss, each image with a mask of its own."""
        masks = [self._visible(generator(self.config.seed, "mask", image_id), 1) for image_id in image_ids]
        visible = torch.cat(masks).to(images.device)
        return {"loss": mae.reconstruction_loss(self._reconstruct(images, visible), images, visible)}

    @staticmethod
    def score(row: dict[str, float]) -> float:
        """Return minus the loss."""
        return -row["val_loss"]

    @staticmethod
    def summary(row: dict[str, float], best: float) -> dict[str, float]:
        """Return the losses."""
        return {"val_loss": row["val_loss"], "best_val_loss": -best}

    def _visible(self, rng: np.random.Generator, rows: int) -> Tensor:
        assert self.config.mae is not None
        patches = self.model.patch_embed.num_patches
        count = mae.num_visible(patches, self.config.mae.mask)
        return torch.from_numpy(mae.draw_visible(patches, count, rng, rows=rows))

    def _reconstruct(self, images: Tensor, visible: Tensor) -> Tensor:
        pixels: Tensor = self.model.decoder(mae.encode(self.model, images, visible), visible)
        return pixels


def _empty(model: VisionTransformer, device: torch.device) -> tuple[Tensor, Tensor, list[str]]:
    """Return an image of zeros, with a label and a name."""
    height, width = model.patch_embed.img_size
    images = torch.zeros((1, 3, height, width), device=device)
    return images, torch.zeros(1, dtype=torch.long, device=device), [""]


def _whole_groups(count: int, group: int) -> list[tuple[int, int]]:
    """Return where the images that fill groups begin and end, and those left over."""
    cut = count - count % group
    return [(first, last) for first, last in pairwise((0, cut, count)) if last > first]


# From an image to what the model is trained and validated on.


class Normalise(nn.Module):
    """From [0, 1] to the model's input."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(config.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(config.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``(B, 3, H, W)``."""
        return (images - self.mean) / self.std


def training_views(
    image: Image.Image, image_id: str, *, view: PairView, framing: Framing, seed: int, epoch: int, count: int
) -> list[Sample]:
    """Return the first ``count`` views of an image's random pair in this epoch."""
    rng = generator(seed, "training view", image_id, epoch)
    return list(view.pair(image, framing=framing, rng=rng))[:count]


def clean_view(image: Image.Image, image_id: str, *, framing: Framing) -> list[Sample]:
    """Return the unperturbed view of an image."""
    return [framing.clean(image)]
