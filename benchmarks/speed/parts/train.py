"""Training V-MoE-S/32 against timm's dense ViT of the same width and depth, and what of a step is not the model.

A batch is two views each of so many images. The dense model's times count as many times as V-MoE has its FLOPs
(multiply-adds of k experts per token, without what is padded). Values come first: the forward pass and the update are
also done by programs written plainly, and must agree.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, Race, Target
from benchmarks.speed.trainings import (
    DenseStep,
    PlainStep,
    Sizes,
    Waiting,
    dense_like,
    digits,
    first_batch,
    parameters,
    pixels,
    plainly,
    trainer,
)
from moeprobe.models.training.loop import Trainer

OURS, DENSE = "moeprobe", "dense ViT, scaled by FLOPs"
FULL = Sizes(model="vmoe_small_patch32_224", rows=32, classes=1000)
QUICK = Sizes(model="vmoe_tiny_patch8_32", rows=16, classes=10)
_DIGITS = 64
_WORKERS = 2
# Batches that each loader process may have ready.
_PREFETCH = 2
_TOLERANCE = 1e-4


class Train(Part):
    """Forward pass, training steps, optimizer, and waiting for images."""

    rounds: ClassVar[int] = 7

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the model's races, then those of a step on digits."""
        sizes, device = QUICK if settings.quick else FULL, settings.device
        yield _forward(sizes, device)
        yield _step(sizes, device)
        yield _objectives(sizes, device)
        yield _update(sizes, device)
        yield _waiting(f"input of {sizes.model}", trainer(sizes, "balanced", device, workers=_WORKERS), 4)
        yield _fixed(device)
        yield _waiting(
            "input of digits", digits(_DIGITS, device, workers=_WORKERS), 4 if settings.quick else 32
        )


def _forward(sizes: Sizes, device: str) -> Race:
    one = trainer(sizes, "balanced", device)
    images, _ = pixels(one, first_batch(one))
    model, plain = one.model.eval(), plainly(one.model)
    dense, scale = dense_like(one.model, sizes.classes)
    dense.eval()

    def run(which: torch.nn.Module) -> object:
        with torch.inference_mode():
            return which(images)

    return Race(
        "forward",
        [
            Contestant(OURS, partial(run, model), "ours"),
            Contestant("MoE layers as a loop over experts", partial(run, plain)),
            Contestant(DENSE, partial(run, dense), "limit", scale=scale),
        ],
        tolerance=_TOLERANCE,
        targets=[Target(OURS, DENSE, at_least=0.9)],
        items=sizes.rows,
    )


def _step(sizes: Sizes, device: str) -> Race:
    one = trainer(sizes, "balanced", device)
    batch = first_batch(one)
    plain = PlainStep(one, batch)
    dense, scale = dense_like(one.model, sizes.classes)

    def ours() -> object:
        return {"loss": one.train_step(batch)["loss"], "parameters": parameters(one.model)}

    return Race(
        "training step, balanced",
        [
            Contestant(OURS, ours, "ours"),
            Contestant("the same, with a loop over the parameters", plain),
            Contestant(DENSE, DenseStep(dense, *pixels(one, batch)), "limit", scale=scale),
        ],
        tolerance=_TOLERANCE,
        targets=[Target(OURS, DENSE, at_least=0.88)],
        items=sizes.rows,
    )


def _objectives(sizes: Sizes, device: str) -> Race:
    """Return balanced and PRC steps on the same views."""
    made = {name: trainer(sizes, name, device) for name in ("balanced", "prc")}
    batch = first_batch(made["balanced"])
    return Race(
        "training step on the same views",
        [Contestant(name, partial(one.train_step, batch), "ours") for name, one in made.items()],
        tolerance=None,
        targets=[Target("prc", "balanced", at_most=1.05)],
        items=sizes.rows,
    )


def _update(sizes: Sizes, device: str) -> Race:
    """Return a step, and the update of the parameters alone."""
    one = trainer(sizes, "balanced", device)
    batch = first_batch(one)
    one.train_step(batch)  # leaves gradients
    return Race(
        "update of the parameters",
        [
            Contestant("update", one.optimizer.step, "ours"),
            Contestant("whole step", partial(one.train_step, batch), "ours"),
        ],
        tolerance=None,
        targets=[Target("update", "whole step", at_most=0.1)],
    )


def _fixed(device: str) -> Race:
    """Return a step of one image, which is hardly more than what Python and torch's dispatch take, and a whole one."""
    steps: dict[str, Trainer] = {
        "of 1 image": digits(1, device),
        f"of {_DIGITS} images": digits(_DIGITS, device),
    }
    whole = f"of {_DIGITS} images"
    return Race(
        "digits step",
        [Contestant(name, partial(one.train_step, first_batch(one)), "ours") for name, one in steps.items()],
        tolerance=None,
        targets=[Target("of 1 image", whole, at_most=0.2)],
    )


def _waiting(name: str, one: Trainer, steps: int) -> Race:
    waiting = Waiting(one, steps=steps, ready=_WORKERS * _PREFETCH)
    return Race(
        f"{name}, {_WORKERS} processes",
        [
            Contestant("waiting", partial(waiting.take, "waiting"), "ours"),
            Contestant("steps and waiting", partial(waiting.take, "all"), "ours"),
        ],
        tolerance=None,
        targets=[Target("waiting", "steps and waiting", at_most=0.05)],
        meter=_as_measured,
    )


def _as_measured(returned: object) -> float:
    assert isinstance(returned, float)
    return returned
