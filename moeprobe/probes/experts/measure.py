"""The work of ``experts``: each batch as it is, then once for every intervention in every layer.

Axes: B images or texts, T tokens, E experts, K choices, D width.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.expert_outputs import ExpertOutputsAnalysis, LayerOutputs
from moeprobe.metrics.analyses.experts import DRAWN, ExpertsAnalysis, Interventions, Outcome
from moeprobe.metrics.analyses.load import loads
from moeprobe.metrics.analyses.selection import can_flip, other_sets, runner_up
from moeprobe.probes.engine.batch_sums import labels_of, log_probability, output_sums
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import check_some_layer
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.outputs import check_forced_choices
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.experts import Experts
from moeprobe.probes.experts.redundancy import redundancy_rows
from moeprobe.probes.experts.sampled import Effort, draw_experts
from moeprobe.results import summaries
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Replayable, Rerouted, Resumable, Separable
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.seeds import generator

# Numbers that outputs of all experts, and products of patches, may take at once.
_NUMBERS_AT_ONCE = 2**25
# From the sets (B, T, K) of all tokens to the scores (B, classes), or log-probabilities (B, T) of texts.
Run = Callable[[Tensor], Tensor]


class ExpertsMeasurement(VariantsMeasurement):
    """Passes in which all tokens of one layer have other experts."""

    probe: Experts

    def check_models(self) -> None:
        """Raise ``UserError`` unless tokens of the models choose, and can be made to choose otherwise."""
        for model in self.models:
            check_forced_choices(
                model,
                self.options.layers,
                irreplayable="no expert can be banned or forced",
                scoreless="no expert has a price",
            )
        check_some_layer(
            self.models,
            self.options.layers,
            can_flip,
            missing="can an expert be banned or forced",
            condition="without a limit of capacity.",
        )

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch."""
        measured = draw_experts(spec, model, self._effort)
        return partial(_batch_sums, spec, model, self._effort.draws, measured)

    def more_rows(self, sums: SumsStore, info: summaries.About) -> list[dict[str, Any]]:
        """Return what banned experts cost with intervals that hold for all at once, and which may go."""
        return redundancy_rows(sums, info, loss=self.probe.loss)

    @property
    def passes(self) -> int:
        """The most passes per image: interventions count as whole passes, though they may begin at their layer."""
        return max(map(self._effort.passes, self._num_experts()))

    @property
    def _effort(self) -> Effort:
        return Effort.of(self._num_experts(), self.probe.experts_per_layer, self.probe.draws)

    def _num_experts(self) -> list[list[int]]:
        """Return how many experts each layer of each model has, in which they can be banned or forced."""
        return [
            [
                layer.num_experts
                for layer in routing_of_blank_input(model, self.options.layers)
                if can_flip(layer)
            ]
            for model in self.models
        ]


def _batch_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    draws: int,
    measured: Mapping[str, Sequence[int]],
    batch: Batch | TextBatch,
) -> dict[str, Sums]:
    """Return the sums of a batch: of the output, and of each layer by intervention.

    ``measured``: experts of a layer that are banned and forced one by one, where they are not all.
    """
    model, inputs = checkpoint.model, batch.views[0]
    layers = spec.layers_of(model)
    scores, routing = model.trace(inputs, layers=layers, logits=spec.of_output)
    finite.check(routing.layers, scores, batch.image_ids, checkpoint=checkpoint.name)
    sums: Sums = {Cell(): output_sums(spec, checkpoint, batch, None, scores)} if spec.of_output else {}
    before = model.log_probabilities(inputs) if isinstance(model, Rerouted) else scores
    assert before is not None
    labels = labels_of(spec, batch).to(before.device) if spec.labeled else None
    names = [name for name, layer in routing.layers.items() if can_flip(layer)]
    images: Any = inputs  # texts have neither
    trunks = model.trunks(images, layers=names) if isinstance(model, Resumable) else {}
    tokens = model.router_inputs(images, layers=names) if isinstance(model, Separable) else {}
    for name in names:
        layer = routing.layers[name]
        run = partial(_run, model, inputs, name, layer, trunks[name].hidden if trunks else None)
        effects = {
            intervention: _outcome(run, of_kind, before, labels, is_text=isinstance(model, Rerouted))
            for intervention, of_kind in _interventions(
                layer, batch.image_ids, name=name, seed=spec.seed, draws=draws, measured=measured.get(name)
            ).items()
        }
        cell = Cell(spec.label_of(model, name), layer.router, layer.choices_per_token)
        sums[cell] = ExpertsAnalysis().sums(Interventions(effects, layer.num_experts, measured.get(name)))
        of_patches = loads("load", [layer])
        if isinstance(model, Separable):
            of_patches |= _output_sums(model, name, tokens[name], layer)
        sums[dataclasses.replace(cell, tokens=layer.modality.token)] = of_patches
    return {CLEAN: sums}


def _run(
    model: Any, inputs: Any, name: str, layer: LayerRouting, hidden: Tensor | None, selected: Tensor
) -> Tensor:
    """Return what the model gives when the tokens of a layer have these sets ``(B, T, K)``; later layers are free."""
    # Where nothing is selected, in padding, nothing is processed.
    changed = dataclasses.replace(layer, selected=selected.to(layer.selected.dtype), processed=selected >= 0)
    routing = RoutingTrace({name: changed})
    if isinstance(model, Rerouted):
        return model.replayed_log_probabilities(inputs, routing)
    if hidden is not None:
        return model.resume(name, hidden, routing)[0]
    assert isinstance(model, Replayable)
    return model.replay(inputs, routing)


def _interventions(
    layer: LayerRouting,
    image_ids: Sequence[str],
    *,
    name: str,
    seed: int,
    draws: int,
    measured: Sequence[int] | None = None,
) -> Mapping[str, Iterator[Tensor]]:
    """Return the sets ``(B, T, K)`` of the interventions of each kind, one after the other.

    What is random belongs to (seed, layer, input, draw). Where some experts are ``measured``, one is drawn for each
    input, too, and stands for all.
    """
    selected, next_best = layer.selected, runner_up(layer)[..., None]
    experts = range(layer.num_experts) if measured is None else measured

    def generators(purpose: str, draw: int) -> list[np.random.Generator]:
        return [generator(seed, f"experts {name} {purpose}", image_id, draw) for image_id in image_ids]

    def drawn_experts(draw: int) -> Tensor:
        numbers = [random.integers(layer.num_experts) for random in generators("expert", draw)]
        return torch.tensor(numbers, device=selected.device)[:, None, None]

    of_drawn: dict[str, Iterator[Tensor]] = {}
    if measured is not None:
        of_drawn = {
            f"without{DRAWN}": (
                selected.where(selected != drawn_experts(draw), next_best) for draw in range(draws)
            ),
            f"forced{DRAWN}": (_with_expert(layer, drawn_experts(draw)) for draw in range(draws)),
        }
    return of_drawn | {
        "without": (selected.where(selected != expert, next_best) for expert in experts),
        "forced": (_with_expert(layer, expert) for expert in experts),
        "random": (_at_random(layer, generators("random", draw)) for draw in range(draws)),
        "permuted": (_relabel_experts(layer, generators("permutation", draw)) for draw in range(draws)),
    }


def _with_expert(layer: LayerRouting, expert: int | Tensor) -> Tensor:
    """Return the sets with an expert in place of the last chosen one, where it is not chosen anyway.

    ``expert``: of all inputs, or of each ``(B, 1, 1)``.
    """
    selected = layer.selected
    is_missing = ~(selected == expert).any(-1, keepdim=True) & (selected[..., -1:] >= 0)
    newcomers = torch.as_tensor(expert, device=selected.device).to(selected.dtype)
    return torch.cat([selected[..., :-1], newcomers.where(is_missing, selected[..., -1:])], -1)


def _at_random(layer: LayerRouting, generators: Sequence[np.random.Generator]) -> Tensor:
    """Return other sets than the clean ones, drawn by the generator of each input."""
    keys = np.stack([random.random(layer.gates.shape[1:]) for random in generators])
    drawn = other_sets(layer, torch.from_numpy(-keys).to(layer.selected.device))
    return drawn.where(layer.selected >= 0, layer.selected)


def _relabel_experts(layer: LayerRouting, generators: Sequence[np.random.Generator]) -> Tensor:
    """Return the sets with every expert replaced by the next one on a circle of all, drawn for each input.

    A cycle of all experts: none keeps its name, and no set of fewer experts than all stays as it is.
    """
    order = torch.from_numpy(np.stack([random.permutation(layer.num_experts) for random in generators]))
    following = torch.empty_like(order).scatter(1, order, order.roll(-1, 1)).to(layer.selected)
    experts = layer.selected.long().clamp_min(0).flatten(1)
    return following.gather(1, experts).view_as(layer.selected).where(layer.selected >= 0, layer.selected)


def _outcome(
    run: Run, sets: Iterator[Tensor], before: Tensor, labels: Tensor | None, *, is_text: bool
) -> Outcome:
    """Run the interventions of one kind, and compare what they give with ``before``.

    Without ``labels``, the loss is of the answer that the model gave before.
    """
    if is_text:
        has_score = before.isfinite()
        falls = [(before - run(selected)).double().masked_fill(~has_score, 0).sum(1) for selected in sets]
        return Outcome(torch.stack(falls, 1), has_score.sum(1), None, None)
    answer_before = before.argmax(-1)
    expected = answer_before if labels is None else labels
    is_labeled, target = expected >= 0, expected.clamp_min(0)
    score_before = log_probability(before, target)
    price, correct, answer = [], [], []
    for selected in sets:
        scores = run(selected)
        price.append((score_before - log_probability(scores, target)).masked_fill(~is_labeled, 0))
        predicted = scores.argmax(-1)
        correct.append((predicted == expected) & is_labeled)
        answer.append(predicted != answer_before)
    is_correct = None if labels is None else torch.stack(correct, 1)
    return Outcome(torch.stack(price, 1), is_labeled.long(), is_correct, torch.stack(answer, 1))


def _output_sums(model: Separable, name: str, tokens: Tensor, layer: LayerRouting) -> dict[str, Tensor]:
    """Return the sums of the outputs of all experts on the patches, some images at a time."""
    prefix, (size, num_tokens, num_experts) = layer.num_prefix_tokens, layer.gates.shape
    at_once = max(1, _NUMBERS_AT_ONCE // (num_experts * num_tokens * max(num_tokens, tokens.shape[-1])))
    parts = []
    for start in range(0, size, at_once):
        rows = slice(start, start + at_once)
        outputs = model.expert_outputs(name, tokens[rows])[:, prefix:]
        subject = LayerOutputs(outputs, layer.weights[rows, prefix:], layer.valid[rows, prefix:])
        parts.append(ExpertOutputsAnalysis().sums(subject))
    return {column: torch.cat([part[column] for part in parts]) for column in parts[0]}
