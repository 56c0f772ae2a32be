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
from moeprobe.probes.attack import LEVELS, UNIT, VIEWS, Attack
from moeprobe.probes.engine.batch_sums import labels_of, layer_sums, output_sums
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.variants import BatchSums, Sums, VariantsMeasurement
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Differentiable
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
    sums: Sums = {}
    for severity in probe.epsilons:
        view = first
        if severity > 0:
            perturbed = _perturbed(spec, checkpoint, probe, batch, first[0], severity / LEVELS)
            view = model.trace(perturbed, layers=layers, logits=True)
        sums_by_cell = layer_sums(spec, checkpoint, batch, first[1], view[1], 0)
        sums_by_cell[Cell()] = output_sums(spec, checkpoint, batch, first[0], view[0])
        sums |= {
            dataclasses.replace(cell, severity=severity): columns for cell, columns in sums_by_cell.items()
        }
    return {VIEWS[probe.direction]: sums}


def _perturbed(
    spec: RunSpec, checkpoint: Checkpoint, probe: Attack, batch: Batch, scores: Tensor, epsilon: float
) -> Tensor:
    images, model = batch.views[0], checkpoint.model
    if probe.direction == "random":
        return at_random(images, batch.image_ids, epsilon=epsilon, seed=spec.seed)
    assert isinstance(model, Differentiable)
    labels = labels_of(spec, batch).to(scores.device)
    # An image without a label is moved away from the class that the model gives it.
    targets = torch.where(labels >= 0, labels, scores.argmax(-1))
    return ascended(model, images.to(scores.device), targets, epsilon=epsilon, steps=probe.steps)


# Images that are perturbed as far as epsilon allows: up the loss, or at random.


def ascended(model: Differentiable, images: Tensor, targets: Tensor, *, epsilon: float, steps: int) -> Tensor:
    """Return images after projected gradient ascent on the cross-entropy of ``targets`` (Madry et al. 2018).

    It begins at the image itself, so that the same call gives the same images.

    Args:
        model: whose loss.
        images: ``(B, 3, H, W)`` in [0, 1].
        targets: ``(B,)`` classes.
        epsilon: the largest change of a value, in units of the range [0, 1].
        steps: of 2.5 epsilon / steps along the signs of the gradient.
    """
    adversarial = images
    for _ in range(steps):
        adversarial = adversarial + 2.5 * epsilon / steps * model.loss_gradient(adversarial, targets).sign()
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
