"""What an ascent raises: the loss of the answer, tokens that leave their sets of experts, or that go to one expert.

Axes: B images, T tokens, E experts, K choices.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moeprobe.errors import UserError
from moeprobe.metrics.analyses.selection import (
    choices_by_expert,
    has_margins,
    logit_margins,
    selection_margins,
    selection_scores,
)
from moeprobe.probes.attack import ANSWER, JOINT, KEEPING_ANSWER, ONE_EXPERT, OVERLOAD, Attack
from moeprobe.routing.capabilities import Differentiable, Steerable
from moeprobe.routing.record import LayerRouting, RoutingTrace

# The gradient ``(B, 3, H, W)`` of what is raised, at images ``(B, 3, H, W)``.
Gradient = Callable[[Tensor], Tensor]
# From class scores and routing of a pass to a value of each image ``(B,)``.
Value = Callable[[Tensor, RoutingTrace], Tensor]


@dataclass(frozen=True)
class RaisedObjective:
    """What an ascent raises.

    Attributes:
        gradient: at images ``(B, 3, H, W)``.
        values: how bad images ``(B, 3, H, W)`` are, ``(B,)``: of several ascents the highest is the worst.
    """

    gradient: Gradient
    values: Callable[[Tensor], Tensor]


def make_objective(
    probe: Attack,
    model: Any,
    scores: Tensor,
    clean: RoutingTrace,
    *,
    labels: Tensor,
    layers: Sequence[str] | None,
) -> RaisedObjective:
    """Return the objective of an attack.

    Args:
        probe: the attack.
        model: whose gradient is followed.
        scores: ``(B, classes)`` of the clean images.
        clean: their routing.
        labels: ``(B,)`` classes, -1 = none: such an image is moved away from the class that the model gives it.
        layers: whose routing; None = all.
    """
    answers = scores.argmax(-1)
    targets = labels.where(labels >= 0, answers)
    if probe.on == ANSWER:
        assert isinstance(model, Differentiable)
        # By the margin of the wrong answer, not by the loss: it is above 0 just where the answer is lost.
        values = partial(_values, model, lambda logits, _: _wrong_margin(logits, targets), layers)
        return RaisedObjective(partial(model.loss_gradient, targets=targets), values)
    if probe.on == ONE_EXPERT:
        assert probe.expert is not None
        to_expert = {name: torch.full_like(answers, probe.expert) for name in clean.layers}
        return steering(model, sending(to_expert), layers=layers)
    if probe.on == OVERLOAD:
        return steering(model, sending(busiest(clean)), layers=layers)
    value = leaving(clean)
    if probe.on == KEEPING_ANSWER:
        value = _with_loss(value, answers, weight=-1)
    elif probe.on == JOINT:
        value = _with_loss(value, targets, weight=1)
    return steering(model, value, layers=layers)


def steering(model: Steerable, value: Value, *, layers: Sequence[str] | None) -> RaisedObjective:
    """Return the objective that raises a value of routing, and perhaps of class scores."""

    def differentiable(scores: Tensor, routing: RoutingTrace) -> Tensor:
        of_images = value(scores, routing)
        if not of_images.requires_grad:
            raise UserError(
                "Routing that is fixed or moves in jumps has no gradient that an attack on it could follow; "
                "attack a model whose router scores the tokens."
            )
        return of_images

    gradient = partial(model.routing_gradient, objective=differentiable, layers=layers)
    return RaisedObjective(gradient, partial(_values, model, value, layers))


def leaving(clean: RoutingTrace) -> Value:
    """Return minus the margins of all tokens that still have their clean sets.

    A margin is what the set is from changing: in logits for a softmax, else in scores. Margins are averaged over the
    tokens of an image, where those that left their sets count as 0, and over layers.
    """

    def value(scores: Tensor, routing: RoutingTrace) -> Tensor:
        margins = (remaining_margins(clean.layers[name], layer) for name, layer in routing.layers.items())
        return -_over_layers(margins)

    return value


def sending(experts: Mapping[str, Tensor]) -> Value:
    """Return minus what tokens lack to have an expert ``(B,)`` of each layer, averaged as in ``leaving``."""

    def value(scores: Tensor, routing: RoutingTrace) -> Tensor:
        return -_over_layers(lacking(layer, experts[name]) for name, layer in routing.layers.items())

    return value


def busiest(routing: RoutingTrace) -> dict[str, Tensor]:
    """Return the expert ``(B,)`` of each layer that most tokens of an image have; of several the lowest."""
    return {name: choices_by_expert(layer).argmax(-1) for name, layer in routing.layers.items()}


def remaining_margins(clean: LayerRouting, layer: LayerRouting) -> Tensor | None:
    """Return how far each token ``(B, T)`` is from leaving its clean set, 0 once it has; None where that is unknown."""
    # Under the present scores the margin of the clean set is negative, thus NaN, once the token has another set.
    in_clean_sets = dataclasses.replace(_with_logarithms(layer), selected=clean.selected)
    of_logits = logit_margins(in_clean_sets)
    margins = selection_margins(in_clean_sets) if of_logits is None else of_logits
    return None if margins is None else margins.nan_to_num(0)


def lacking(layer: LayerRouting, experts: Tensor) -> Tensor | None:
    """Return how far each token ``(B, T)`` is from having the expert ``(B,)`` of its image, 0 once it has it.

    That is the K-th best score of other experts less the expert's own: in logits for a softmax. None where tokens do
    not choose by scores that are known.
    """
    if not can_be_sent(layer):
        return None
    in_logits = layer.scores is None and layer.gates_sum_to_one
    scores = selection_scores(_with_logarithms(layer) if in_logits else layer, in_logits=in_logits)
    index = experts[:, None, None].expand(*scores.shape[:2], 1)
    score = scores.gather(-1, index).squeeze(-1)
    cutoff = scores.scatter(-1, index, -torch.inf).topk(layer.top_k).values[..., -1]
    return (cutoff - score).clamp_min(0).masked_fill(~layer.valid, 0)


def _with_logarithms(layer: LayerRouting) -> LayerRouting:
    """Return a layer whose gates are above 0: one that is rounded to 0 has no logarithm, and no gradient of it."""
    return dataclasses.replace(layer, gates=layer.gates.clamp_min(torch.finfo(layer.gates.dtype).tiny))


def can_be_sent(layer: LayerRouting) -> bool:
    """Whether it is known what a token lacks to have an expert: tokens choose, by scores that are known."""
    return layer.tokens_choose and has_margins(layer)


def _with_loss(value: Value, targets: Tensor, *, weight: float) -> Value:
    """Return a value with the cross-entropy of the answer added."""
    return lambda scores, routing: (
        value(scores, routing) + weight * F.cross_entropy(scores, targets, reduction="none")
    )


def _over_layers(margins: Any) -> Tensor:
    """Return the mean ``(B,)`` over tokens, then over the layers that have margins ``(B, T)``."""
    return torch.stack([layer.mean(-1) for layer in margins if layer is not None]).mean(0)


def _wrong_margin(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the best score of another class minus the target's."""
    index = targets[:, None]
    best_wrong = scores.scatter(-1, index, -torch.inf).amax(-1)
    return best_wrong - scores.gather(-1, index).squeeze(-1)


def _values(model: Any, value: Value, layers: Sequence[str] | None, images: Tensor) -> Tensor:
    """Return a value ``(B,)`` of a pass of images."""
    scores, routing = model.trace(images, layers=layers, logits=True)
    return value(scores, routing)
