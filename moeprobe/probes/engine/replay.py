"""Pixels and routing exchanged: perturbed pixels routed as the clean ones, and the other way round.

Axes: B images.
"""

from typing import Any

import torch
from torch import Tensor

from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import RoutingTrace

# One forward pass: pixels (B, 3, S, S) (or texts), class scores (B, classes), routing.
ForwardPass = tuple[Any, Tensor, RoutingTrace]


def exchange(
    model: Replayable, clean: ForwardPass, perturbed: ForwardPass, *, gates: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the class scores of (pixels, routing): clean clean, perturbed clean, clean perturbed, perturbed perturbed.

    ``gates`` as in ``routing.Replayable``.
    """
    return (
        clean[1],
        _replay(model, perturbed, clean[2], gates),
        _replay(model, clean, perturbed[2], gates),
        perturbed[1],
    )


def _replay(model: Replayable, own_pass: ForwardPass, replayed_routing: RoutingTrace, gates: str) -> Tensor:
    pixels, scores, routing = own_pass
    if replayed_routing is routing:
        return scores
    replayed = model.replay(pixels, replayed_routing, gates=gates)
    if gates == "replayed":
        return replayed
    # An image whose routing is the same anyway is not changed by the rounding of its batch-mates' switches.
    return scores.where(_same_routing(routing, replayed_routing)[:, None], replayed)


def _same_routing(first: RoutingTrace, second: RoutingTrace) -> Tensor:
    """Return for which images ``(B,)`` every token of every layer has the same experts, selected and at work.

    In whatever order they are selected: what the layers give for a token is a sum over its experts.
    """
    pairs = [(layer, second.layers[name]) for name, layer in first.layers.items()]
    same = [
        layer.selects_the_same(second_layer) & layer.processed_the_same(second_layer)
        for layer, second_layer in pairs
    ]
    return torch.stack([tokens.all(1) for tokens in same]).all(0)
