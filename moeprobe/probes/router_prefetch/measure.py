"""The work of ``prefetch``: each router is applied to the input of the one before, too.

Axes: B inputs, T tokens, K choices of a token, E experts, S numbers of loaded experts.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint, layers_before
from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.router_ahead import AheadHits, RouterAhead
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.run_spec import RunSpec, chosen_layers
from moeprobe.probes.router_prefetch import RouterPrefetch, sizes_of
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import AheadRoutable
from moeprobe.routing.record import LayerRouting


class PrefetchMeasurement(VariantsMeasurement):
    """One pass over each input, and each router once more."""

    probe: RouterPrefetch

    def check_models(self) -> None:
        """Raise ``UserError`` where routers cannot be applied by themselves, or predict nothing."""
        for model in self.models:
            if not isinstance(model.model, AheadRoutable):
                raise UserError(
                    f"The routers of {model.name} cannot be applied to the input of another layer, so nothing is "
                    "predicted with them; trace record and trace prefetch predict from its choices."
                )
            layers = chosen_layers(model.model.layer_names, self.options.layers)
            predicted = layers_before(layers, model.model.layer_names)
            if not predicted:
                raise UserError(
                    f"Experts are predicted from the MoE layer before, and {model.name} has none before "
                    f"{', '.join(layers) or 'its layers'}; choose others with {option('layers')}."
                )
            for name, routing in zip(layers, routing_of_blank_input(model, self.options.layers), strict=True):
                if name not in predicted:
                    continue
                if not routing.tokens_choose or routing.top_k >= routing.num_experts:
                    raise UserError(
                        f"In {name} of {model.name} tokens do not choose some of several experts, so none is loaded "
                        f"ahead; leave the layer out with {option('layers')}."
                    )
                sizes_of(self.probe.loaded, name, top_k=routing.top_k, num_experts=routing.num_experts)

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch."""
        return partial(_batch_sums, spec, model, self.probe.loaded)


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, loaded: Sequence[int] | None, batch: Batch | TextBatch
) -> dict[str, Sums]:
    """Return the sums of a batch, layer by layer and of all layers that are alike."""
    model = checkpoint.model
    assert isinstance(model, AheadRoutable)
    routing, ahead = model.trace_ahead(batch.views[0], layers=spec.layers_of(model))
    sums: Sums = {}
    of_layers: list[tuple[LayerRouting, list[AheadHits]]] = []
    for name, scores in ahead.items():
        layer = routing.layers[name]
        sizes = sizes_of(loaded, name, top_k=layer.top_k, num_experts=layer.num_experts)
        subjects = _hits(layer, scores, sizes)
        of_layers.append((layer, subjects))
        cell = Cell(spec.label_of(model, name), layer.router, layer.top_k, tokens=layer.modality.token)
        sums |= {
            replace(cell, severity=float(subject.loaded)): RouterAhead().sums(subject) for subject in subjects
        }
    if len({(layer.num_experts, layer.top_k, layer.router) for layer, _ in of_layers}) == 1 < len(of_layers):
        cell = replace(cell, layer="")
        for same_size in zip(*(subjects for _, subjects in of_layers), strict=True):
            joined = AheadHits(
                torch.stack([subject.hits for subject in same_size]).sum(0),
                torch.cat([subject.uses for subject in same_size], 1),
                same_size[0].loaded,
            )
            sums[replace(cell, severity=float(joined.loaded))] = RouterAhead().sums(joined)
    return {CLEAN: sums}


def _hits(layer: LayerRouting, scores: Tensor, sizes: Sequence[int]) -> list[AheadHits]:
    """Return the hits of the ordinary tokens of a layer, by the number of loaded experts.

    ``scores`` ``(B, T, E)``: by which the layer's router ranks experts for the input of the layer before.
    """
    tokens = slice(layer.num_prefix_tokens, None)
    is_choice = layer.selected_mask[:, tokens] & layer.valid[:, tokens, None]
    # Ties to the lower expert, as in the choice itself.
    order = scores[:, tokens].sort(dim=-1, descending=True, stable=True).indices
    by_rank = is_choice.gather(-1, order).sum(1)
    # The uses of all layers are kept for each number of loaded experts: half as many bytes as by default.
    uses = is_choice.sum(1, dtype=torch.int32)[:, None]
    return [AheadHits(by_rank[:, :size].sum(1), uses, size) for size in sizes]
