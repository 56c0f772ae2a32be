"""What the part ``train`` runs: trainings of made-up images, a dense ViT of the same sizes, the step written plainly.

Axes: P patches, T tokens, D width, H hidden width, E experts, k choices per token.
"""

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.speed.plain_layers import Rule, Weights, loop
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.digits import Digits
from moeprobe.inputs.views.base import PairView
from moeprobe.inputs.views.prc_crops import PrcCrops
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.models.config import OptimizerConfig, TrainConfig
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training.loop import Trainer
from moeprobe.models.training.objectives.base import importance_loss, load_loss
from moeprobe.models.training.optimize import make_optimizer
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.seeds import torch_seed

OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=1e-4, weight_decay=0.05, clip_norm=1.0)
_LONG = 10**6


@dataclass(frozen=True)
class Sizes:
    """A model of the catalog, and so many rows of a batch: two views of each image."""

    model: str
    rows: int
    classes: int


class MadeUp(ImageDataset):
    """Noise of 500 x 375 pixels, as long as a training wants."""

    def __init__(self, num: int, classes: int) -> None:
        self._classes = classes
        self.image_ids = [f"noise/{number}" for number in range(num)]
        self.class_names = tuple(f"class {number}" for number in range(classes))

    def example(self, index: int) -> Example:
        """Return image ``index``, which is always the same."""
        pixels = np.random.default_rng(index).integers(0, 256, (375, 500, 3), dtype=np.uint8)
        return Example(Image.fromarray(pixels), self.image_ids[index], label=index % self._classes)


def trainer(sizes: Sizes, objective: str, device: str, *, workers: int = 0) -> Trainer:
    """Return a training at its start; nothing of it is written."""
    content: dict[str, Any] = {
        "name": "bench",
        "data": {"name": "digits", "workers": workers},
        "model": {"name": sizes.model},
        "view": {"name": "prc_crops"},
        "objective": {"name": objective},
        "optimizer": OPTIMIZER.model_dump(),
        "batch_size": max(1, sizes.rows // 2),
        "steps": _LONG,
    }
    data = MadeUp(max(sizes.classes, sizes.rows), sizes.classes)
    return _begun(content, PrcCrops(), data, data, device)


def digits(images: int, device: str, *, workers: int = 0) -> Trainer:
    """Return a training on digits with so many images in a step."""
    content = {
        "name": "bench",
        "data": {"name": "digits", "workers": workers},
        "batch_size": images,
        "steps": _LONG,
    }
    return _begun(content, RandomCrop(), Digits(split="train"), Digits(split="val"), device)


def _begun(
    content: dict[str, Any], view: PairView, data: ImageDataset, val_data: ImageDataset, device: str
) -> Trainer:
    one = Trainer(
        TrainConfig.model_validate(content),
        train_data=data,
        val_data=val_data,
        view=view,
        folder=Path("bench"),
        device=choose_device(device),
    )
    _fill_head(one.model)
    return one


def _fill_head(model: VisionTransformer) -> None:
    """Give the head values: behind one of zeros, gradients are so small that arithmetic on their squares is slow."""
    torch.manual_seed(0)
    nn.init.normal_(model.head.weight, std=0.02)


def first_batch(one: Trainer) -> Batch:
    """Return a batch of a training."""
    made = one.batches()
    batch = next(made)
    made.close()  # type: ignore[attr-defined]  # a generator
    return batch


def pixels(one: Trainer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the normalized rows of a batch, as a step makes them, and their labels."""
    images = torch.stack(batch.views, dim=1).flatten(0, 1).to(one.device)
    labels = batch.labels.repeat_interleave(len(batch.views)).to(one.device)
    normalized: Tensor = one.normalise(images)
    return normalized, labels


def dense_like(model: VisionTransformer, num_classes: int) -> tuple[VisionTransformer, float]:
    """Return timm's dense ViT of the same sizes, and how many times its FLOPs ``model`` has."""
    embedding, block = model.patch_embed, model.blocks[0]
    patch, width, hidden = embedding.patch_size[0], model.embed_dim, block.mlp.fc1.out_features
    made = VisionTransformer(
        img_size=embedding.img_size[0], patch_size=patch, embed_dim=width, depth=len(model.blocks),
        num_heads=block.attn.num_heads, mlp_ratio=hidden / width, num_classes=num_classes,
        act_layer=lambda: nn.GELU(approximate="tanh"),
    )  # fmt: skip
    _fill_head(made)
    made.to(next(model.parameters()).device)
    tokens = embedding.num_patches + model.num_prefix_tokens
    perceptron = 2 * tokens * width * hidden
    attention = 4 * tokens * width**2 + 2 * tokens**2 * width
    dense = 3 * embedding.num_patches * patch**2 * width + width * num_classes
    dense += len(model.blocks) * (attention + perceptron)
    added = 0
    for layer in moe_layers(model).values():
        assert layer.router.top_k is not None
        added += (layer.router.top_k - 1) * perceptron + tokens * width * layer.router.num_experts
    return made, 1 + added / dense


class DenseStep:
    """Steps of a dense model as anyone writes them, with the optimizer of our trainings."""

    def __init__(self, model: VisionTransformer, images: Tensor, labels: Tensor) -> None:
        self._model, self._images, self._labels = model.train(), images, labels
        self._optimizer = make_optimizer(model, OPTIMIZER)

    def __call__(self) -> None:
        """Make a step."""
        loss = nn.functional.cross_entropy(self._model(self._images), self._labels)
        self._optimizer.zero_grad()
        loss.backward()
        assert OPTIMIZER.clip_norm is not None
        nn.utils.clip_grad_norm_(self._model.parameters(), OPTIMIZER.clip_norm)
        self._optimizer.step()


class PlainStep:
    """The balanced step as torch's manual would write it: whole gradients clipped, a loop over the parameters."""

    def __init__(self, one: Trainer, batch: Batch) -> None:
        self._seed, self._step, self._batch = one.config.seed, 0, batch
        self._normalise, self._trainer = one.normalise, one
        self._model = copy.deepcopy(one.model)
        ours = make_optimizer(self._model, OPTIMIZER)
        groups = [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in ours.param_groups]
        self._optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.learning_rate, foreach=False, fused=False)

    def __call__(self) -> dict[str, object]:
        """Make a step; returns the loss and the parameters."""
        torch.manual_seed(torch_seed(self._seed, "step", draw=self._step))
        images, labels = pixels(self._trainer, self._batch)
        with capture(self._model) as decisions:
            logits = self._model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        for one in decisions.values():
            assert one.top_k is not None
            load = load_loss(one.logits, one.noisy_logits, top_k=one.top_k, noise_scale=one.noise_scale)
            loss = loss + 0.005 * importance_loss(one.clean_gates).mean() + 0.005 * load.mean()
        self._model.zero_grad()
        loss.backward()
        assert OPTIMIZER.clip_norm is not None
        nn.utils.clip_grad_norm_(self._model.parameters(), OPTIMIZER.clip_norm)
        self._optimizer.step()
        self._step += 1
        return {"loss": loss.detach(), "parameters": parameters(self._model)}


def parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters, not copied."""
    return [one.detach() for one in model.parameters()]


class _PlainLayer(nn.Module):
    """A MoE layer without limit that runs expert after expert, on the same parameters."""

    def __init__(self, layer: MoeLayer) -> None:
        super().__init__()
        held = dict(layer.named_parameters())
        names = (
            "router.gate.weight",
            *(f"experts.{n}" for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")),
        )
        self._weights = Weights(*(held[name] for name in names))
        assert layer.router.top_k is not None
        self._rule = Rule(layer.router.top_k, 1, None)

    def forward(self, tokens: Tensor) -> Tensor:
        return loop(tokens.flatten(0, 1), self._weights, self._rule).view_as(tokens)


def plainly(model: VisionTransformer) -> VisionTransformer:
    """Return the model with its MoE layers written as a loop over the experts, for evaluation."""
    made = copy.deepcopy(model)
    for block in made.blocks:
        if isinstance(block.mlp, MoeLayer):
            block.mlp = _PlainLayer(block.mlp)
    return made.eval()


class Waiting:
    """Seconds of a step that a training spends waiting for its batch, and all of them, from the same steps.

    Args:
        one: the training.
        steps: how many are measured at a time, after as many as the loader may have had ready.
        ready: those.
    """

    def __init__(self, one: Trainer, *, steps: int, ready: int) -> None:
        self._trainer, self._steps, self._ready = one, steps, ready
        self._taken: dict[str, float] = {}

    def take(self, which: Literal["waiting", "all"]) -> float:
        """Return a number, of a new measurement where it was taken already."""
        if which not in self._taken:
            self._taken = self._measure()
        return self._taken.pop(which)

    def _measure(self) -> dict[str, float]:
        waited, begun, made = 0.0, 0.0, self._trainer.batches()
        for number in range(self._ready + self._steps):
            if number == self._ready:
                waited, begun = 0.0, time.perf_counter()
            asked = time.perf_counter()
            batch = next(made)
            waited += time.perf_counter() - asked
            self._trainer.train_step(batch)["loss"].item()
        taken = time.perf_counter() - begun
        made.close()  # type: ignore[attr-defined]  # a generator
        return {"waiting": waited / self._steps, "all": taken / self._steps}
