"""The work of ``regret``: each batch as it is, then sampled tokens with each of some other choices.

The tokens of all inputs of a batch get their n-th other choice together, each in a pass of its own input. So one
forward pass tries as many choices as a batch holds. The router's choice is forced in the same way.

Axes: B inputs, T tokens, N sampled tokens, M tried choices.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.choices import ChoicesAnalysis, TriedChoices
from moeprobe.metrics.analyses.selection import can_flip
from moeprobe.metrics.token_kinds import slices
from moeprobe.probes.engine.batch_sums import labels_of
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import check_some_layer
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.outputs import check_forced_choices
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.flips.price import CleanPass, ForcedSets, price_flips, run_clean
from moeprobe.probes.flips.texts import (
    CleanTexts,
    check_writes,
    price_text_flips,
    resumable_layers,
    run_texts,
)
from moeprobe.probes.regret import EQUAL, Regret
from moeprobe.probes.regret.tried import OtherChoices, draw_choices
from moeprobe.results.sums import Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Rerouted
from moeprobe.routing.record import LayerRouting, RoutingTrace

# From what is forced on tokens of a layer to the rise of the loss of each ``(B, T)``, in nats.
Rise = Callable[[str, ForcedSets], Tensor]


class RegretMeasurement(VariantsMeasurement):
    """Passes in which one token of one layer has another choice of experts."""

    probe: Regret

    def check_models(self) -> None:
        """Raise ``UserError`` unless tokens of the models choose, and can be made to choose otherwise."""
        for model in self.models:
            check_forced_choices(
                model,
                self.options.layers,
                irreplayable="no other choice can be tried",
                scoreless="no choice has a loss",
            )
            if isinstance(model.model, Rerouted):
                check_writes(model)
        check_some_layer(
            self.models,
            self.options.layers,
            can_flip,
            missing="can one token get another set while all others keep theirs",
            condition="without a limit of capacity.",
        )

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch."""
        resumable: list[str] = []
        if isinstance(model.model, Rerouted):
            resumable = resumable_layers(model, spec.layers_of(model.model) or model.model.layer_names)
        return partial(self._batch_sums, spec, model, resumable)

    @property
    def passes(self) -> int:
        """The most passes per input: options count as whole passes, though they may begin at their layer."""
        return 1 + max(
            sum(
                (self.probe.patches + layer.num_prefix_tokens)
                * (1 + min(self.probe.tried, layer.top_k * (layer.num_experts - layer.top_k)))
                for layer in routing_of_blank_input(model, self.options.layers)
                if can_flip(layer)
            )
            for model in self.models
        )

    def _batch_sums(
        self, spec: RunSpec, checkpoint: Checkpoint, resumable: list[str], batch: Batch | TextBatch
    ) -> dict[str, Sums]:
        """Return the sums of a batch, of each layer and kind of tokens."""
        clean, rise = _clean_pass(spec, checkpoint, resumable, batch)
        sums: Sums = {}
        for name in _layers(spec, checkpoint, clean.routing):
            layer = clean.flippable(name)
            choices = draw_choices(
                layer,
                batch.image_ids,
                name=name,
                patches=self.probe.patches,
                tried=self.probe.tried,
                has_equal_weights=self.probe.weights == EQUAL,
                seed=spec.seed,
            )
            tried = _try(choices, partial(rise, name), delta=self.probe.delta)
            label = spec.label_of(checkpoint.model, name)
            for tokens, mask in _kinds(layer, choices.token):
                cell = Cell(label, layer.router, layer.choices_per_token, tokens=tokens)
                sums[cell] = ChoicesAnalysis().sums(tried.among(mask))
        return {CLEAN: sums}


def _try(choices: OtherChoices, rise: Callable[[ForcedSets], Tensor], *, delta: float) -> TriedChoices:
    """Return what the choices do to the loss, beside the router's choice forced in the same way.

    A forced pass differs from a whole one by rounding, even where it repeats the router's choice. All options share
    this difference, so it would move the router's choice alone among them.
    """
    index = choices.source, choices.token
    rises = torch.stack([rise(forced)[index].double() for forced in choices.forced_sets()], 1)
    return TriedChoices(
        inputs=len(choices.weight),
        source=choices.source,
        weight=choices.weight[index],
        rise=rises[:, 1:] - rises[:, :1],
        gates=choices.gates,
        delta=delta,
    )


def _clean_pass(
    spec: RunSpec, checkpoint: Checkpoint, resumable: list[str], batch: Batch | TextBatch
) -> tuple[CleanPass | CleanTexts, Rise]:
    """Return the pass of a batch as it is, and what prices choices: later layers choose as their routers do."""
    model: Any = checkpoint.model
    inputs: Any = batch.views[0]  # texts or images, as the model reads
    size = spec.batch_size
    if isinstance(model, Rerouted):
        texts = run_texts(checkpoint, inputs, resumable)
        finite.check(texts.routing.layers, None, batch.image_ids, checkpoint=checkpoint.name)

        def rise_of_text(name: str, forced: ForcedSets) -> Tensor:
            flips = price_text_flips(model, texts, name, forced, batch_size=size, is_later_fixed=False)
            return flips.following_fall

        return texts, rise_of_text
    clean = run_clean(
        checkpoint,
        inputs,
        labels_of(spec, batch),
        layers=lambda routing: _layers(spec, checkpoint, routing),
    )
    finite.check(clean.routing.layers, clean.scores, batch.image_ids, checkpoint=checkpoint.name)

    def rise_of_image(name: str, forced: ForcedSets) -> Tensor:
        flips = price_flips(model, clean, name, forced, batch_size=size, is_later_fixed=False)
        # Without labels, the loss is that of the answer that the model gives.
        return flips.price if spec.labeled else flips.fall

    return clean, rise_of_image


def _layers(spec: RunSpec, checkpoint: Checkpoint, routing: RoutingTrace) -> list[str]:
    """Return the layers of the run in which a token can get another choice alone."""
    names = spec.layers_of(checkpoint.model) or list(routing.layers)
    return [name for name in names if can_flip(routing.layers[name])]


def _kinds(layer: LayerRouting, token: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each kind of tokens, and which sampled tokens ``(N,)`` are of it."""
    for kind, part in slices(layer).items():
        first, last, _ = part.indices(layer.gates.shape[1])
        yield kind, (token >= first) & (token < last)
