"""The work of ``attack``: each batch as it is, then perturbed by every epsilon."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.selection import has_margins
from moeprobe.probes.attack import ANSWER, L2, LEVELS, LOSSES, ONE_EXPERT, OVERLOAD, UNITS, Attack
from moeprobe.probes.attack.ascent import at_random, worst_of
from moeprobe.probes.attack.objectives import can_be_sent, make_objective
from moeprobe.probes.engine.batch_sums import ForwardResult, corner_sums, labels_of, layer_sums, output_sums
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Differentiable, Steerable

# From an epsilon, in units of the range [0, 1], to the perturbed images ``(B, 3, H, W)`` of a batch.
Perturb = Callable[[float], Tensor]


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
        if self.probe.transfer:
            self._check_transfer()

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
        if self.probe.on in (ONE_EXPERT, OVERLOAD):
            sendable = [layer for layer in layers if can_be_sent(layer)]
            if not sendable:
                raise UserError(
                    f"In {model.name} ({layers[0].router}) experts choose their tokens, so that all are equally busy; "
                    f"use {option('on', 'routes')}."
                )
            fewest = min(layer.num_experts for layer in sendable)
            if self.probe.expert is not None and self.probe.expert >= fewest:
                raise UserError(
                    f"{option('expert')} takes 0 to {fewest - 1} for {model.name}, which has {fewest} experts; got "
                    f"{self.probe.expert}."
                )

    def _check_transfer(self) -> None:
        """Raise ``UserError`` unless images that are crafted on one model can be shown to the others."""
        first, *remaining = self.models
        if not remaining:
            raise UserError(
                f"{option('transfer')} judges a checkpoint on images that were crafted on another; name at least two."
            )
        for model in remaining:
            if model.framing != first.framing:
                raise UserError(
                    f"{first.name} and {model.name} read images of different sizes or crops, so no attack on one can "
                    f"be shown to the other; leave out {option('transfer')}."
                )

    @property
    def severity_unit(self) -> str:
        """What an epsilon of 1 is."""
        return UNITS[self.probe.norm]

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, for every epsilon."""
        sources = [source for source in self.models if source is not model] if self.probe.transfer else []
        return partial(_batch_sums, spec, model, self.probe, sources)

    @property
    def passes(self) -> int:
        """Passes per image; one with its gradient is counted as three."""
        probe = self.probe
        crafting = 0 if probe.direction == "random" else len(self.models) if probe.transfer else 1
        # The worst of several ascents takes a pass more of each.
        ascents = crafting * (1 + probe.restarts) * (3 * probe.steps + (probe.restarts > 0))
        judged = (crafting + 1) * (3 if probe.attribute else 1)
        return max(crafting, 1) + (ascents + judged) * sum(epsilon > 0 for epsilon in probe.levels)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Record the objective, the steps and the random changes."""
        probe = self.probe
        random = "an even direction" if probe.norm == L2 else "each value up or down"
        notes = {"random_changes": f"{random}, with the norm epsilon before values are cut off at 0 and 1"}
        if probe.direction == "gradient":
            along = "gradient, divided by its l2 norm" if probe.norm == L2 else "signs of the gradient"
            notes |= {
                "raised": LOSSES[probe.on],
                "step": f"2.5 epsilon / {probe.steps} along the {along}, then back to within epsilon and [0, 1]",
                "start": "the image"
                + (f", and {probe.restarts} random points within epsilon" if probe.restarts else ""),
            }
        result.sidecar["attack"] = notes
        return result


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, probe: Attack, sources: list[Checkpoint], batch: Batch | TextBatch
) -> Mapping[str, Sums]:
    """Return the sums of a batch by kind of perturbation, with epsilon as the severity of each cell."""
    assert isinstance(batch, Batch)
    clean = _clean_pass(spec, checkpoint, batch)
    perturbations: dict[str, Perturb] = {}
    if probe.direction == "gradient":
        perturbations[probe.shown_as] = _attack(spec, checkpoint, probe, batch, clean)
        for source in sources:
            crafted = _attack(spec, source, probe, batch, _clean_pass(spec, source, batch))
            perturbations[f"{probe.shown_as}_from_{source.name}"] = crafted
    perturbations[probe.random_view] = _random(spec, probe, batch)
    unperturbed = (
        _view_sums(spec, checkpoint, batch, clean, batch.views[0], clean) if 0 in probe.levels else {}
    )
    sums: dict[str, Sums] = {view: {} for view in perturbations}
    for severity in probe.levels:
        for view, perturb in perturbations.items():
            of_view = unperturbed
            if severity > 0:
                perturbed = perturb(severity)
                passed = checkpoint.model.trace(
                    perturbed, layers=spec.layers_of(checkpoint.model), logits=True
                )
                of_view = _view_sums(spec, checkpoint, batch, clean, perturbed, passed)
            sums[view] |= {
                dataclasses.replace(cell, severity=severity): columns for cell, columns in of_view.items()
            }
    return sums


def _clean_pass(spec: RunSpec, checkpoint: Checkpoint, batch: Batch) -> ForwardResult:
    return checkpoint.model.trace(batch.views[0], layers=spec.layers_of(checkpoint.model), logits=True)


def _attack(spec: RunSpec, source: Checkpoint, probe: Attack, batch: Batch, clean: ForwardResult) -> Perturb:
    """Return what crafts the images of a batch on a model, whose pass of the clean images is given."""
    scores, routing = clean
    assert scores is not None
    labels = labels_of(spec, batch).to(scores.device)
    layers = spec.layers_of(source.model)
    objective = make_objective(probe, source.model, scores, routing, labels=labels, layers=layers)
    images = batch.views[0].to(scores.device)
    return lambda severity: worst_of(
        objective,
        images,
        batch.image_ids,
        epsilon=severity / LEVELS,
        steps=probe.steps,
        norm=probe.norm,
        restarts=probe.restarts,
        seed=spec.seed,
    )


def _random(spec: RunSpec, probe: Attack, batch: Batch) -> Perturb:
    """Return what changes the images of a batch at random."""
    images, names = batch.views[0], batch.image_ids
    return lambda severity: at_random(
        images, names, epsilon=severity / LEVELS, seed=spec.seed, norm=probe.norm
    )


def _view_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch,
    clean: ForwardResult,
    perturbed: Tensor,
    passed: ForwardResult,
) -> Sums:
    """Return what the analyses say of perturbed images, whose pass is given, against the clean ones."""
    sums = layer_sums(spec, checkpoint, batch, clean[1], passed[1], 0)
    sums[Cell()] = output_sums(spec, checkpoint, batch, clean[0], passed[0])
    if spec.corners:
        exchanged = dataclasses.replace(batch, views=[batch.views[0], perturbed])
        sums[Cell()] |= corner_sums(spec, checkpoint, exchanged, clean, passed, 1)
    return sums
