"""The work of ``attack``: each batch as it is, then perturbed by every epsilon."""

import dataclasses
from functools import partial

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.probes.attack import LEVELS, UNIT, VIEWS, Attack
from moeprobe.probes.attack.ascent import ascended, at_random
from moeprobe.probes.engine.applicability import check_images
from moeprobe.probes.engine.batch_sums import labels_of, layer_sums, output_sums
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.variants import BatchSums, Sums, VariantsMeasurement
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Differentiable


class AttackMeasurement(VariantsMeasurement):
    """Passes over images that are perturbed in the sight of the model."""

    probe: Attack

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models read images and say how their loss depends on them."""
        check_images(self.models, "there are no pixels to change")
        for model in self.models:
            if self.probe.direction == "gradient" and not isinstance(model.model, Differentiable):
                raise UserError(
                    f"{model.name} gives no gradient of its loss, which an attack follows; use --direction random."
                )

    @property
    def severity_unit(self) -> str:
        """What an epsilon of 1 is."""
        return UNIT

    def batch_sums(self, question: Question, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, for every epsilon."""
        return partial(_batch_sums, question, model, self.probe)

    @property
    def passes(self) -> int:
        """Passes per image; one with its gradient is counted as three."""
        each = 1 + 3 * self.probe.steps if self.probe.direction == "gradient" else 1
        return 1 + each * sum(epsilon > 0 for epsilon in self.probe.epsilons)


def _batch_sums(
    question: Question, checkpoint: Checkpoint, probe: Attack, batch: Batch | TextBatch
) -> dict[str, Sums]:
    """Return the sums of a batch, with epsilon as the severity of each cell."""
    assert isinstance(batch, Batch)
    model, images, layers = checkpoint.model, batch.views[0], question.layers_of(checkpoint.model)
    first = model.trace(images, layers=layers, logits=True)
    assert first[0] is not None
    sums: Sums = {}
    for severity in probe.epsilons:
        view = first
        if severity > 0:
            moved = _moved(question, checkpoint, probe, batch, first[0], severity / LEVELS)
            view = model.trace(moved, layers=layers, logits=True)
        found = layer_sums(question, checkpoint, batch, first[1], view[1], 0)
        found[Cell()] = output_sums(question, checkpoint, batch, first[0], view[0])
        sums |= {dataclasses.replace(cell, severity=severity): one for cell, one in found.items()}
    return {VIEWS[probe.direction]: sums}


def _moved(
    question: Question, checkpoint: Checkpoint, probe: Attack, batch: Batch, scores: Tensor, epsilon: float
) -> Tensor:
    images, model = batch.views[0], checkpoint.model
    if probe.direction == "random":
        return at_random(images, batch.image_ids, epsilon=epsilon, seed=question.seed)
    assert isinstance(model, Differentiable)
    labels = labels_of(question, batch).to(scores.device)
    # An image without a label is moved away from the class that the model gives it.
    targets = torch.where(labels >= 0, labels, scores.argmax(-1))
    return ascended(model, images.to(scores.device), targets, epsilon=epsilon, steps=probe.steps)
