"""Which sets are forced on which tokens of a layer, and what a model gives when one token has its forced set.

The pass up to the layer is run once; flips are passes of their own from there on, many in a batch. Models that cannot
resume a pass are run as a whole.

Axes: B images, T tokens, N flips, K choices, D width.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.metrics.analyses.flips import ForcedFlips
from moeprobe.metrics.analyses.selection import other_sets, runner_up
from moeprobe.probes.engine.batch_sums import log_probability
from moeprobe.routing.capabilities import Replayable, Resumable, Trunk
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.seeds import generator

# Changes of class scores, as a share of the largest, that passes of another batch differ by.
_ROUNDING = 2e-6


@dataclass(frozen=True)
class ForcedSets:
    """Sets to be forced on tokens of a layer, one token at a time.

    Attributes:
        selected: ``(B, T, K)`` the other set of each token.
        weight: ``(B, T)`` float64, tokens of the image that a sampled token stands for; 0 = not sampled.
        gates: ``(B, T, E)`` the weights of experts; None = as the router weighs them for its present input.
    """

    selected: Tensor
    weight: Tensor
    gates: Tensor | None = None

    @property
    def gates_from(self) -> str:
        """Whether gates are "recomputed" or "replayed"; see ``routing.Replayable``."""
        return "recomputed" if self.gates is None else "replayed"


def forced_sets(
    layer: LayerRouting,
    perturbed: LayerRouting,
    image_ids: Sequence[str],
    *,
    name: str,
    patches: int,
    seed: int,
) -> dict[str, ForcedSets]:
    """Return the sets that are forced on tokens of a layer, by kind of set.

    Args:
        layer: the clean routing.
        perturbed: the routing of the perturbed images.
        image_ids: names of the images.
        name: of the layer.
        patches: sampled patches of an image, for each kind of set; all prefix tokens are taken.
        seed: of the run.
    """
    num_tokens, num_experts = layer.gates.shape[1:]
    draws = np.stack(
        [
            generator(seed, f"flips {name}", image_id).random((num_tokens, 1 + num_experts))
            for image_id in image_ids
        ]
    )
    keys = torch.from_numpy(draws).to(layer.gates.device)
    is_full = layer.valid & (layer.selected >= 0).all(-1)
    sets = {"runner_up": _with_runner_up(layer, -1)}
    if layer.top_k > 1:
        sets["first"] = _with_runner_up(layer, 0)
    sets["random"] = other_sets(layer, keys[..., 1:])
    sets["view"] = perturbed.selected
    flipped = {
        "view": ~layer.selects_the_same(perturbed) & (perturbed.selected >= 0).all(-1) & perturbed.valid,
    }
    return {
        forced: ForcedSets(
            selected,
            sampling_weights(
                is_full & flipped.get(forced, is_full), keys[..., 0], layer.num_prefix_tokens, patches
            ),
        )
        for forced, selected in sets.items()
    }


def _with_runner_up(layer: LayerRouting, position: int) -> Tensor:
    """Return the sets with the best expert that was not chosen in place of the one at ``position``."""
    selected = layer.selected.clone()
    selected[..., position] = runner_up(layer)
    return selected


def sampling_weights(eligible: Tensor, keys: Tensor, prefix: int, patches: int) -> Tensor:
    """Return the weights ``(B, T)`` of all eligible prefix tokens, and of so many eligible patches as are sampled."""
    weight = eligible.double()
    of_patches = eligible[:, prefix:]
    rank = keys[:, prefix:].masked_fill(~of_patches, torch.inf).argsort(-1).argsort(-1)
    sampled = of_patches & (rank < patches)
    stands_for = of_patches.sum(-1, keepdim=True) / sampled.sum(-1, keepdim=True).clamp_min(1)
    weight[:, prefix:] = sampled * stands_for
    return weight


@dataclass(frozen=True)
class CleanPass:
    """A batch of images as it is.

    Attributes:
        images: ``(B, 3, S, S)`` in [0, 1].
        scores: ``(B, classes)``.
        routing: of all layers.
        labels: ``(B,)``, -1 = none.
        trunks: of the measured layers; empty where the model cannot resume a pass.
        reached: which tokens of a layer the scores depend on, in the layers where it was needed.
    """

    images: Tensor
    scores: Tensor
    routing: RoutingTrace
    labels: Tensor
    trunks: dict[str, Trunk]
    reached: dict[str, Tensor] = field(default_factory=dict)

    def reached_at(self, layer: str, model: Resumable) -> Tensor:
        """Return which tokens ``(T,)`` of a layer the scores depend on; a gradient, for all kinds of sets the same."""
        if layer not in self.reached:
            self.reached[layer] = model.reached_from(layer, self.trunks[layer].hidden)
        return self.reached[layer]

    def flippable(self, layer: str) -> LayerRouting:
        """Return the routing of a layer, valid where a token can be flipped."""
        return self.routing.layers[layer]

    @property
    def predicted(self) -> Tensor:
        """The predicted class ``(B,)``."""
        return self.scores.argmax(-1)


def run_clean(
    checkpoint: Checkpoint, images: Tensor, labels: Tensor, *, layers: Callable[[RoutingTrace], Sequence[str]]
) -> CleanPass:
    """Return the pass of a batch of images as it is.

    Args:
        checkpoint: which is run.
        images: ``(B, 3, S, S)`` in [0, 1].
        labels: ``(B,)``, -1 = none.
        layers: chooses those that passes are taken up at.
    """
    model = checkpoint.model
    assert isinstance(model, Replayable)
    scores, routing = model.trace(images)
    assert scores is not None
    # Trunks save the layers before a flip, where the model can resume.
    trunks = model.trunks(images, layers=layers(routing)) if isinstance(model, Resumable) else {}
    return CleanPass(images, scores, routing, labels.to(scores.device), trunks)


def price_flips(
    model: Replayable,
    clean: CleanPass,
    layer: str,
    forced: ForcedSets,
    *,
    batch_size: int,
    is_later_fixed: bool,
) -> ForcedFlips:
    """Force sets on the sampled tokens of a layer, one token in each pass.

    Args:
        model: which is run.
        clean: the pass that is changed.
        layer: where.
        forced: tokens and sets.
        batch_size: passes at a time.
        is_later_fixed: whether later layers keep the choices of the clean pass.
    """
    image, token = forced.weight.nonzero(as_tuple=True)
    scores = [clean.scores[:0]]
    outputs: list[Tensor] = []
    for start in range(0, len(image), batch_size):
        rows, flipped = (index[start : start + batch_size] for index in (image, token))
        routing = flipped_routing(clean.routing, layer, rows, flipped, forced, is_later_fixed=is_later_fixed)
        if layer in clean.trunks:
            assert isinstance(model, Resumable)
            flipped_scores, output = model.resume(
                layer, clean.trunks[layer].hidden[rows], routing, gates=forced.gates_from
            )
            outputs.append(output[torch.arange(len(rows), device=rows.device), flipped])
        else:
            images = clean.images[rows.to(clean.images.device)]
            flipped_scores = model.replay(images, routing, gates=forced.gates_from)
        scores.append(flipped_scores)
    return _flips(model, clean, layer, forced.weight, (image, token), torch.cat(scores), outputs)


def flipped_routing(
    trace: RoutingTrace, layer: str, rows: Tensor, token: Tensor, forced: ForcedSets, *, is_later_fixed: bool
) -> RoutingTrace:
    """Return the routing of passes ``(N,)`` of images ``rows``, in each of which one token has its forced set."""
    names = list(trace.layers)
    last = None if is_later_fixed else names.index(layer) + 1
    layers = {
        name: trace.layers[name].of_each_input(itemgetter(rows)) for name in names[names.index(layer) : last]
    }
    selected, processed = layers[layer].selected.clone(), layers[layer].processed.clone()
    passes = torch.arange(len(rows), device=rows.device)
    selected[passes, token] = forced.selected[rows, token]
    processed[passes, token] = True
    layers[layer] = dataclasses.replace(layers[layer], selected=selected, processed=processed)
    if forced.gates is not None:
        gates = layers[layer].gates.clone()
        gates[passes, token] = forced.gates[rows, token]
        layers[layer] = dataclasses.replace(layers[layer], gates=gates)
    return RoutingTrace(layers)


def _flips(
    model: Replayable,
    clean: CleanPass,
    layer: str,
    weight: Tensor,
    index: tuple[Tensor, Tensor],
    scores: Tensor,
    outputs: list[Tensor],
) -> ForcedFlips:
    """Return what scores ``(N, classes)`` and the layer's outputs at the flipped tokens say of the flips ``index``."""
    image, token = index
    if layer in clean.trunks:
        assert isinstance(model, Resumable)
        # Where nothing arrives, passes of another batch differ by rounding alone.
        is_reached = clean.reached_at(layer, model)
        scores = scores.where(is_reached[token, None], clean.scores[image])
    else:
        # A whole pass of its own differs by rounding where nothing arrives, too.
        change = (scores - clean.scores[image]).abs().amax(-1)
        is_rounding = change <= _ROUNDING * clean.scores[image].abs().amax(-1)
        scores = scores.where(~is_rounding[:, None], clean.scores[image])
    fall, price = (
        log_probability(clean.scores, target)[image] - log_probability(scores, target[image])
        for target in (clean.predicted, clean.labels.clamp_min(0))
    )

    def at_tokens(values: Tensor) -> Tensor:
        return torch.zeros(weight.shape, dtype=values.dtype, device=weight.device).index_put(index, values)

    output = None
    if layer in clean.trunks:
        clean_output = clean.trunks[layer].output[index].double()
        change = torch.cat([clean_output[:0].to(clean.scores), *outputs]).double() - clean_output
        # A layer that gives nothing is not changed by giving nothing.
        norm = clean_output.norm(dim=-1).clamp_min(torch.finfo(clean_output.dtype).tiny)
        output = at_tokens(change.norm(dim=-1) / norm)
    return ForcedFlips(
        weight=weight,
        price=at_tokens(price).masked_fill((clean.labels < 0)[:, None], torch.nan),
        fall=at_tokens(fall),
        answer=at_tokens(scores.argmax(-1) != clean.predicted[image]),
        output=output,
    )
