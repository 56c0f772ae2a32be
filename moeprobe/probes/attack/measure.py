"""The work of ``attack``: each batch as it is, then perturbed by every epsilon."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.selection import has_margins
from moeprobe.probes.attack import ANSWER, KEEPING_ANSWER, LEVELS, UNIT, Attack
from moeprobe.probes.attack.objectives import Gradient, routes_gradient
from moeprobe.probes.engine.batch_sums import labels_of, layer_sums, output_sums
from moeprobe.probes.engine.checks import check_images, routing_of_blank_input
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.variants import BatchSums, Sums, VariantsMeasurement
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Differentiable, Steerable
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.seeds import generator


class AttackMeasurement(VariantsMeasurement):
    """Passes over images that are perturbed in the sight of the model."""

    probe: Attack

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models read images and say how their loss depends on them."""
        check_images(self.models, "there are no pixels to change")
        for model in self.models:
            if self.probe.direction == "gradient" and not isinstance(model.model, Differentiable):
                raise UserError(
                    f"{model.name} gives no gradient of its loss, which an attack follows; use "
                    f"{option('direction', 'random')}."
                )
            if self.probe.on != ANSWER:
                self._check_routes(model)

    def _check_routes(self, model: Checkpoint) -> None:
        """Raise ``UserError`` unless it is known how the sets of a model's tokens depend on the pixels."""
        if not isinstance(model.model, Steerable):
            raise UserError(
                f"{model.name} gives no gradient of its routing, which this attack follows; use "
                f"{option('on', ANSWER)}."
            )
        layers = routing_of_blank_input(model, self.options.layers)
        if not any(has_margins(layer) for layer in layers):
            raise UserError(
                f"In no layer of {model.name} ({layers[0].router}) is it known how far a set of experts is from "
                f"changing; use {option('on', ANSWER)}."
            )

    @property
    def severity_unit(self) -> str:
        """What an epsilon of 1 is."""
        return UNIT

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, for every epsilon."""
        return partial(_batch_sums, spec, model, self.probe)

    @property
    def passes(self) -> int:
        """Passes per image; one with its gradient is counted as three."""
        each = 1 + 3 * self.probe.steps if self.probe.direction == "gradient" else 1
        return 1 + each * sum(epsilon > 0 for epsilon in self.probe.epsilons)


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, probe: Attack, batch: Batch | TextBatch
) -> dict[str, Sums]:
    """Return the sums of a batch, with epsilon as the severity of each cell."""
    assert isinstance(batch, Batch)
    model, images, layers = checkpoint.model, batch.views[0], spec.layers_of(checkpoint.model)
    first = model.trace(images, layers=layers, logits=True)
    assert first[0] is not None
    gradient = _gradient(spec, checkpoint, probe, batch, first[0], first[1])
    sums: Sums = {}
    for severity in probe.epsilons:
        view = first
        if severity > 0:
            epsilon = severity / LEVELS
            if gradient is None:
                perturbed = at_random(images, batch.image_ids, epsilon=epsilon, seed=spec.seed)
            else:
                perturbed = ascended(gradient, images.to(first[0].device), epsilon=epsilon, steps=probe.steps)
            view = model.trace(perturbed, layers=layers, logits=True)
        sums_by_cell = layer_sums(spec, checkpoint, batch, first[1], view[1], 0)
        sums_by_cell[Cell()] = output_sums(spec, checkpoint, batch, first[0], view[0])
        sums |= {
            dataclasses.replace(cell, severity=severity): columns for cell, columns in sums_by_cell.items()
        }
    return {probe.shown_as: sums}


def _gradient(
    spec: RunSpec, checkpoint: Checkpoint, probe: Attack, batch: Batch, scores: Tensor, clean: RoutingTrace
) -> Gradient | None:
    """Return the gradient that is followed; None where signs are drawn. The class scores and routing are clean."""
    model, answers = checkpoint.model, scores.argmax(-1)
    if probe.direction == "random":
        return None
    if probe.on != ANSWER:
        assert isinstance(model, Steerable)
        keeping = answers if probe.on == KEEPING_ANSWER else None
        return routes_gradient(model, clean, answers=keeping, layers=spec.layers_of(model))
    assert isinstance(model, Differentiable)
    labels = labels_of(spec, batch).to(scores.device)
    # An image without a label is moved away from the class that the model gives it.
    return partial(model.loss_gradient, targets=torch.where(labels >= 0, labels, answers))


# Images that are perturbed as far as epsilon allows: up a gradient, or at random.


def ascended(gradient: Gradient, images: Tensor, *, epsilon: float, steps: int) -> Tensor:
    """Return images after projected gradient ascent (Madry et al. 2018).

    It begins at the image itself: the same call gives the same images.

    Args:
        gradient: of the objective that is raised.
        images: ``(B, 3, H, W)`` in [0, 1].
        epsilon: the largest change of a value, in units of the range [0, 1].
        steps: of 2.5 epsilon / steps along the signs of the gradient.
    """
    adversarial = images
    for _ in range(steps):
        adversarial = adversarial + 2.5 * epsilon / steps * gradient(adversarial).sign()
        adversarial = _near(adversarial, images, epsilon)
    return adversarial


def at_random(images: Tensor, image_ids: Sequence[str], *, epsilon: float, seed: int) -> Tensor:
    """Return images ``(B, 3, H, W)`` whose values are moved by epsilon, up or down as (seed, image) says."""
    shape = images.shape[1:]
    signs = [generator(seed, "attack", name).integers(0, 2, shape, dtype=np.int8) for name in image_ids]
    start = torch.from_numpy(np.stack(signs)).to(images) * 2 - 1
    return _near(images + epsilon * start, images, epsilon)


def _near(adversarial: Tensor, images: Tensor, epsilon: float) -> Tensor:
    """Return images that are images, and no further than epsilon from their own."""
    return torch.clamp(adversarial, images - epsilon, images + epsilon).clamp(0, 1)
