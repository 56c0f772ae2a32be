"""What a training learns: to classify images, or to draw their hidden patches.

Axes: B rows of a batch, V visible patches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from moeprobe.inputs.batches import Loading
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing
from moeprobe.models.config import TrainConfig
from moeprobe.models.nn import mae
from moeprobe.models.nn.capture import capture
from moeprobe.models.training.evaluate import evaluate
from moeprobe.models.training.guided import ByClass, Teacher
from moeprobe.models.training.inputs import clean_view
from moeprobe.models.training.layouts import Layout
from moeprobe.models.training.mixup import mixup
from moeprobe.models.training.objectives.base import Objective, Term, Views
from moeprobe.models.training.room import room
from moeprobe.models.training.step import supervised_loss, total_loss
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.seeds import generator

# What a task keeps of one image of the validation split: name -> value; the means over images are reported.
Judge = Callable[[Tensor, Tensor, list[str]], dict[str, Tensor]]


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
        """Return what step ``step`` measures of normalized images ``(B, 3, H, W)``, which come first; a row per view.

        The rows may be one of equal parts of a batch, one for each of ``ranks``; what is drawn is drawn for all.
        """

    @abstractmethod
    def measure(self, rows: tuple[Tensor, ...], views: Views) -> dict[str, Tensor]:
        """Return the ``loss`` of some of these rows, and what else is reported."""

    @abstractmethod
    def judge(self, images: Tensor, labels: Tensor, image_ids: list[str]) -> dict[str, Tensor]:
        """Return numbers ``(B,)`` of normalized validation images, by name."""

    @staticmethod
    @abstractmethod
    def score(row: dict[str, float]) -> float:
        """Return what is best when it is largest, of an evaluation."""

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
        layout: Layout,
    ) -> dict[str, float]:
        """Return the means of ``judge`` over clean images, each process having some; ``val_`` before their names."""
        found = evaluate(
            self.model,
            data,
            partial(clean_view, framing=framing),
            self.judge,
            normalise=normalise,
            loading=Loading(self.config.eval_batch_size, self.config.data.workers),
            device=device,
            layout=layout,
        )
        return {f"val_{name}": value for name, value in found.items()}

    def _values(
        self, main: Tensor, decisions: Any, views: Views, taught: Mapping[str, Term] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        # Of a dense model nothing decides.
        terms = (self.objective.terms(decisions, views) if decisions else {}) | dict(taught)
        values = {"loss": total_loss(main, terms), "main_loss": main}
        return values | {name: term.value for name, term in terms.items()} | room(decisions)


class Classification(Task):
    """Class scores, against labels that may be mixed up."""

    def __init__(self, config: TrainConfig, model: VisionTransformer, objective: Objective) -> None:
        super().__init__(config, model, objective)
        self._by_class = ByClass(model, config.route_by_class)
        self._teacher = Teacher(config, model) if config.kl_weight else None

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

    def measure(self, rows: tuple[Tensor, ...], views: Views) -> dict[str, Tensor]:
        """Return the supervised loss with the terms of the objective, and the accuracy.

        Where a share of the images has labels alone, loss and accuracy are those of the rows that have one (label from
        0), 0 of a batch without any; all other terms are of all rows.
        """
        images, labels, targets = rows
        with (
            torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.amp),
            self._by_class(self.model, labels),
            capture(self.model) as decisions,
        ):
            logits = self.model(images)
            divergence = self._teacher.divergence(images, decisions) if self._teacher else None
        scores = logits
        if self.config.data.labeled is not None:
            scores, labels, targets = (values[labels >= 0] for values in (logits, labels, targets))
        main = (
            supervised_loss(scores.float(), targets, self.config.loss)
            if len(labels)
            else 0.0 * logits.float().sum()
        )
        hits = (scores.argmax(1) == labels).float()
        taught = {} if divergence is None else {"gate_divergence": Term(divergence, self.config.kl_weight)}
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
        own = visible[ranks.rank * len(images) : (ranks.rank + 1) * len(images)]
        return images, own.to(images.device)

    def measure(self, rows: tuple[Tensor, ...], views: Views) -> dict[str, Tensor]:
        """Return the loss of the hidden patches, with the terms of the objective on what the routers decided."""
        images, visible = rows
        with (
            torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.amp),
            capture(self.model) as decisions,
        ):
            pixels = self._drawn(images, visible)
        return self._values(mae.reconstruction_loss(pixels, images, visible).mean(), decisions, views)

    def judge(self, images: Tensor, labels: Tensor, image_ids: list[str]) -> dict[str, Tensor]:
        """Return the loss, each image with a mask of its own."""
        masks = [self._visible(generator(self.config.seed, "mask", one), 1) for one in image_ids]
        visible = torch.cat(masks).to(images.device)
        return {"loss": mae.reconstruction_loss(self._drawn(images, visible), images, visible)}

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

    def _drawn(self, images: Tensor, visible: Tensor) -> Tensor:
        pixels: Tensor = self.model.decoder(mae.encode(self.model, images, visible), visible)
        return pixels
