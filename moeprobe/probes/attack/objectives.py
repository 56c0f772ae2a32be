"""What an ascent raises: the loss of the answer, or how many tokens leave their clean sets of experts."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from moeprobe.errors import UserError
from moeprobe.metrics.analyses.selection import logit_margins, selection_margins
from moeprobe.routing.capabilities import Steerable
from moeprobe.routing.record import LayerRouting, RoutingTrace

# The gradient ``(B, 3, H, W)`` of what is raised, at images ``(B, 3, H, W)``.
Gradient = Callable[[Tensor], Tensor]


def routes_gradient(
    model: Steerable, clean: RoutingTrace, *, answers: Tensor | None = None, layers: Sequence[str] | None
) -> Gradient:
    """Return the gradient of minus the margins of all tokens that still have their clean sets.

    A margin is what the set is from changing: in logits for a softmax, else in scores. Margins are averaged over the
    tokens of an image, where those that left their sets count as 0, and over layers.

    Args:
        model: whose routing.
        clean: routing of the clean images.
        answers: ``(B,)`` classes that the images are to keep: their cross-entropy is subtracted, with weight 1;
            None = the answer may change.
        layers: whose routing; None = all.
    """

    def objective(scores: Tensor, routing: RoutingTrace) -> Tensor:
        margins = [remaining_margins(clean.layers[name], layer) for name, layer in routing.layers.items()]
        known = torch.stack([layer.mean(-1) for layer in margins if layer is not None])
        if not known.requires_grad:
            raise UserError(
                "Routing that is fixed or moves in jumps has no gradient that an attack on it could follow; "
                "attack a model whose router scores the tokens."
            )
        value = -known.mean(0)
        return value if answers is None else value - F.cross_entropy(scores, answers, reduction="none")

    return lambda images: model.routing_gradient(images, objective, layers=layers)


def remaining_margins(clean: LayerRouting, layer: LayerRouting) -> Tensor | None:
    """Return how far each token ``(B, T)`` is from leaving its clean set, 0 once it has; None where that is unknown."""
    # A gate that is rounded to 0 has no logarithm, and no gradient of it.
    gates = layer.gates.clamp_min(torch.finfo(layer.gates.dtype).tiny)
    # Under the present scores the margin of the clean set is negative, thus NaN, once the token has another set.
    in_clean_sets = dataclasses.replace(layer, gates=gates, selected=clean.selected)
    of_logits = logit_margins(in_clean_sets)
    margins = selection_margins(in_clean_sets) if of_logits is None else of_logits
    return None if margins is None else margins.nan_to_num(0)
