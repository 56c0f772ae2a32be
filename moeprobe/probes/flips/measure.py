"""The work of ``flips``: each batch as it is and perturbed, then single tokens with another set."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.modality import TEXT
from moeprobe.inputs.regions import REGIONS, regions
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.metrics.analyses.flip_costs import FlipCostsAnalysis
from moeprobe.metrics.analyses.flips import DECILES, FlipsAnalysis
from moeprobe.metrics.analyses.selection import can_flip, selection_margins
from moeprobe.metrics.analyses.text_flips import TextFlipsAnalysis
from moeprobe.metrics.token_kinds import slices
from moeprobe.probes.engine.batch_sums import labels_of, load_batches, readable_batches
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import check_some_layer
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.outputs import check_forced_choices
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.flips import FIXED, Flips
from moeprobe.probes.flips.held_out import (
    HELD_OUT,
    HeldOut,
    PriceList,
    WithHeldOut,
    open_held_out,
    predicted_costs,
)
from moeprobe.probes.flips.price import CleanPass, forced_sets, price_flips, run_clean
from moeprobe.probes.flips.texts import (
    CleanTexts,
    check_writes,
    price_text_flips,
    resumable_layers,
    run_texts,
)
from moeprobe.results.sums import Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Replayable, Rerouted
from moeprobe.routing.record import LayerRouting, RoutingTrace

# Images whose margins say where the deciles are, the first of the run: the same in every batch and shard.
_DECILE_IMAGES = 256

# The nine margins between the deciles of each layer.
_Bounds = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class _Pricing:
    """How flips of images, or of texts, get their prices.

    Attributes:
        run: returns the clean pass of a batch, and the routing of the perturbed one.
        price: forces sets on tokens of a layer (``price_flips``, ``price_text_flips``).
        analysis: sums up what it returns.
    """

    run: Callable[[Any], tuple[Any, RoutingTrace]]
    price: Callable[..., Any]
    analysis: FlipsAnalysis | TextFlipsAnalysis


class FlipsMeasurement(VariantsMeasurement):
    """Passes in which one token of one layer has another set of experts."""

    probe: Flips
    masks: ClassVar[bool] = True

    @classmethod
    def learn(cls, probe: Probe[Any], model: Checkpoint, options: Options) -> None:
        """Make the passes over a blank input that the checks need; for texts, the log-probabilities, too."""
        super().learn(probe, model, options)
        if isinstance(model.model, Rerouted):
            check_writes(model)

    def check_models(self) -> None:
        """Raise ``UserError`` unless tokens of the models choose, and can be made to choose otherwise."""
        for model in self.models:
            check_forced_choices(
                model,
                self.options.layers,
                irreplayable="flips cannot be forced",
                scoreless="its flips have no price",
            )
            if isinstance(model.model, Rerouted):
                check_writes(model)
                if self.probe.predict:
                    raise UserError(
                        f"{model.name} reads texts, and {option('predict')} adds up prices of images; leave it out."
                    )
        check_some_layer(
            self.models,
            self.options.layers,
            can_flip,
            missing="can one token get another set while all others keep theirs",
            condition="without a limit of capacity.",
        )
        for model in self.models if self.probe.predict else ():
            if not all(can_flip(layer) for layer in routing_of_blank_input(model, None)):
                raise UserError(
                    f"In some layers of {model.name} no token can get another set alone, so prices cannot add up to "
                    f"the cost of all flips; leave {option('predict')} out."
                )

    def make_spec(self) -> RunSpec:
        """Return the run specification, with the one severity of the perturbation."""
        spec = super().make_spec()
        if not spec.aligned:
            example = "embedding_noise" if spec.dataset.modality is TEXT else "gaussian_noise"
            raise UserError(
                f"The view {spec.view_name!r} moves {spec.dataset.modality.tokens}, so their sets are about other "
                f"places; name one that does not, e.g. {option('view', example)}."
            )
        self._held_out = open_held_out(self.probe.predict, spec)
        spec = dataclasses.replace(spec, severities=spec.severities[-1:])
        more_views = sum(len(each.severities) for each in self._held_out)
        return spec.with_workers(self.models, self.options, more_views=more_views)

    def loaded_view(self, view: PairView | SeverityView | None) -> SeverityView:
        """Return the view, with the held-out perturbations behind it."""
        assert isinstance(view, SeverityView)
        # Loaded with the batch, so that each image is decoded once.
        return WithHeldOut(view, self._held_out)

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch."""
        bounds = _decile_bounds(spec, model)
        if isinstance(model.model, Rerouted):
            resumable = resumable_layers(model, list(bounds))
            run = partial(_run_texts, model, resumable)
            pricing = _Pricing(run, price_text_flips, TextFlipsAnalysis())
        else:
            pricing = _Pricing(partial(_run_images, spec, model), price_flips, FlipsAnalysis())
        return partial(self._batch_sums, spec, model, pricing, bounds)

    @property
    def passes(self) -> int:
        """The most passes per input: flips count as whole passes, though they begin at their layer."""
        # Each perturbed pass is exchanged with the clean one in two more.
        held_out = 3 * sum(len(each.severities) for each in self._held_out)
        # With one expert per token, its first and its last expert are the same.
        flips = max(
            sum(
                (3 + (layer.top_k > 1)) * (self.probe.patches + layer.num_prefix_tokens)
                for layer in routing_of_blank_input(model, self.options.layers)
                if can_flip(layer)
            )
            for model in self.models
        )
        return 2 + flips + held_out

    def _batch_sums(
        self,
        spec: RunSpec,
        checkpoint: Checkpoint,
        pricing: _Pricing,
        bounds: _Bounds,
        batch: Batch | TextBatch,
    ) -> dict[str, Sums]:
        """Return the sums of a batch, of each layer and kind of tokens."""
        clean, perturbed = pricing.run(batch)
        sums: Sums = {}
        price_list = PriceList()
        for name in _layers(spec, checkpoint, clean.routing.layers):
            layer = clean.routing.layers[name]
            sets = forced_sets(
                clean.flippable(name),
                perturbed.layers[name],
                batch.image_ids,
                name=name,
                patches=self.probe.patches,
                seed=spec.seed,
            )
            priced = {
                forced: pricing.price(
                    checkpoint.model,
                    clean,
                    name,
                    other_sets,
                    batch_size=spec.batch_size,
                    is_later_fixed=self.probe.later == FIXED,
                )
                for forced, other_sets in sets.items()
            }
            decile = _decile(layer, bounds[name])
            if self._held_out:
                price_list.add(name, layer, decile, priced["view"])
            for cell, mask in _cells(spec, checkpoint, batch, name, layer, decile):
                sums[cell] = pricing.analysis.sums(
                    {forced: flips.among(mask) for forced, flips in priced.items()}
                )
        by_view = {spec.view_name: sums}
        if self._held_out:
            by_view |= _cost_sums(spec, checkpoint, self._held_out, clean, price_list, batch)
        return by_view


def _run_images(spec: RunSpec, checkpoint: Checkpoint, batch: Batch) -> tuple[CleanPass, RoutingTrace]:
    """Return the passes of a batch as it is, and the routing of the perturbed images."""
    clean = run_clean(
        checkpoint,
        batch.views[0],
        labels_of(spec, batch),
        layers=lambda routing: _layers(spec, checkpoint, routing.layers),
    )
    perturbed = checkpoint.model.trace(batch.views[1], logits=False)[1]
    for trace, logits in ((clean.routing, clean.scores), (perturbed, None)):
        finite.check(trace.layers, logits, batch.image_ids, checkpoint=checkpoint.name)
    return clean, perturbed


def _run_texts(
    checkpoint: Checkpoint, resumable: Sequence[str], batch: TextBatch
) -> tuple[CleanTexts, RoutingTrace]:
    """Return the passes of a batch as it is, and the routing of the perturbed texts."""
    clean = run_texts(checkpoint, batch.views[0], resumable)
    _, perturbed = checkpoint.model.trace(batch.views[1], logits=False)
    for trace in (clean.routing, perturbed):
        finite.check(trace.layers, None, batch.image_ids, checkpoint=checkpoint.name)
    return clean, perturbed


def _cost_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    held_out: Sequence[HeldOut],
    clean: CleanPass,
    price_list: PriceList,
    batch: Batch | TextBatch,
) -> dict[str, Sums]:
    """Return the sums about each held-out perturbation, and about all of them."""
    model = checkpoint.model
    assert isinstance(model, Replayable)
    levels = [(each.name, severity) for each in held_out for severity in each.severities]
    perturbed = []
    for images in batch.views[2:]:
        scores, routing = model.trace(images)
        finite.check(routing.layers, scores, batch.image_ids, checkpoint=checkpoint.name)
        assert scores is not None
        perturbed.append((images, scores, routing))
    costs = predicted_costs(model, clean, perturbed, price_list, batch.image_ids, seed=spec.seed)
    analysis = FlipCostsAnalysis()
    by_view: dict[str, Sums] = {each.name: {} for each in held_out}
    for number, (name, severity) in enumerate(levels):
        by_view[name][Cell(severity=severity)] = analysis.sums(costs.of(number))
    if len(levels) > 1:
        by_view[HELD_OUT] = {Cell(): analysis.sums(costs)}
    return by_view


def _layers(spec: RunSpec, checkpoint: Checkpoint, layers: Mapping[str, LayerRouting]) -> list[str]:
    """Return the layers of the run in which tokens can be flipped."""
    names = spec.layers_of(checkpoint.model) or list(layers)
    return [name for name in names if can_flip(layers[name])]


def _cells(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    name: str,
    layer: LayerRouting,
    decile: Tensor,
) -> Iterator[tuple[Cell, Tensor]]:
    """Yield the cell of each kind of a layer's tokens, and which tokens ``(B, T)`` are of it."""
    label, (severity,) = spec.label_of(checkpoint.model, name), spec.severities
    for tokens, mask in _kinds(batch, layer, decile).items():
        cell = Cell(label, layer.router, layer.choices_per_token, severity=float(severity), tokens=tokens)
        yield cell, mask


def _kinds(batch: Batch | TextBatch, layer: LayerRouting, decile: Tensor) -> dict[str, Tensor]:
    """Return which tokens ``(B, T)`` are of each kind: patches, those before, regions, and deciles of the margin."""
    prefix, device = layer.num_prefix_tokens, layer.valid.device
    kinds = {kind: torch.zeros_like(layer.valid) for kind in slices(layer)}
    for kind, part in slices(layer).items():
        kinds[kind][:, part] = True
    is_patch = kinds[layer.modality.token]
    if isinstance(batch, Batch) and batch.foreground is not None:
        assert layer.grid is not None
        region = torch.from_numpy(regions(batch.foreground[0], layer.grid)).to(device)
        for code, name in enumerate(REGIONS):
            kinds[name] = is_patch.clone()
            kinds[name][:, prefix:] = region == code
    for number in range(DECILES):
        kinds[margin_kind(number)] = is_patch & (decile == number)
    return kinds


def _decile(layer: LayerRouting, bounds: NDArray[np.float64]) -> Tensor:
    """Return the decile ``(B, T)`` that a token's margin is in, numbered from 0; -1 = it has no margin."""
    margins = selection_margins(layer)
    assert margins is not None
    decile = torch.bucketize(margins, torch.from_numpy(bounds).to(margins))
    return decile.masked_fill(~margins.isfinite(), -1)


def margin_kind(number: int) -> str:
    """Return what tables call the patches of a decile of the margin, numbered from 0."""
    return f"margin {number + 1}/{DECILES}"


def _decile_bounds(spec: RunSpec, checkpoint: Checkpoint) -> _Bounds:
    """Return where the margins of patches of the first images are cut into deciles, layer by layer."""
    # Without the view: deciles are those of clean margins.
    clean = dataclasses.replace(spec, view=None, severities=())
    margins: dict[str, list[NDArray[np.float64]]] = {}
    skipped: list[str] = []
    first: Sequence[int] = spec.indices[:_DECILE_IMAGES]
    for batch in readable_batches(load_batches(clean, checkpoint, first), skipped, None):
        _, trace = checkpoint.model.trace(
            batch.views[0], layers=spec.layers_of(checkpoint.model), logits=False
        )
        for name in _layers(spec, checkpoint, trace.layers):
            layer = trace.layers[name]
            values = selection_margins(layer)
            assert values is not None
            margins.setdefault(name, []).append(values[:, layer.num_prefix_tokens :].flatten().cpu().numpy())
    shares = np.arange(1, DECILES) / DECILES
    return {name: np.nanquantile(np.concatenate(values), shares) for name, values in margins.items()}
