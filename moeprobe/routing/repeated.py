"""Choices that were made elsewhere, as a foreign router would hand them on: with weights by its own rule.

Axes: N tokens, E experts, K choices.
"""

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting

# By how much weights may miss a rule that they follow except for rounding (to bfloat16).
_TOLERANCE = 2e-2
_NOTHING = 1e-12


def check_sizes(name: str, routing: LayerRouting, *, num_experts: int, top_k: int) -> None:
    """Raise ``UserError`` unless a routing is of a layer of these sizes."""
    if (routing.num_experts, routing.top_k) != (num_experts, top_k):
        raise UserError(
            f"The routing of {name} chooses {routing.top_k} of {routing.num_experts} experts, and the model {top_k} of "
            f"{num_experts}: it is of another model."
        )


def repeat(
    gates: Tensor, experts: Tensor, weights: Tensor, routing: LayerRouting, name: str, *, replayed: bool
) -> tuple[Tensor, Tensor]:
    """Return the experts and weights ``(N, K)`` of a routing; a token without a choice in it keeps its own.

    Args:
        gates: ``(N, E)`` of the router for its present input.
        experts: ``(N, K)`` its own choice, -1 = none.
        weights: ``(N, K)`` what it weighs them by.
        routing: the choices to repeat.
        name: of the layer.
        replayed: the weights follow from the gates in the routing, and not from the present ones.

    Raises:
        UserError: it is of another number of tokens, has no gates to be replayed, or the weights follow no known rule.
    """
    selected = routing.selected.to(gates.device).long().flatten(0, 1)
    if len(selected) != len(gates):
        raise UserError(
            f"The routing of {name} is of {len(selected)} tokens, and the batch has {len(gates)}."
        )
    # A dropped choice has no weight to be repeated.
    has_choice = (selected >= 0) & routing.processed.to(gates.device).flatten(0, 1)
    has_expert = has_choice.any(-1, keepdim=True)
    index, own_experts = selected.clamp_min(0), experts.long()
    source = routing.gates.to(gates.device).float().flatten(0, 1) if replayed else gates
    selected_gates = source.gather(1, index).masked_fill(~has_choice, 0)
    # Recorded gates of zeros mean that they were not kept.
    if replayed and has_choice.any() and not selected_gates.any():
        raise UserError(f"The routing of {name} has no gates; let them be recomputed.")
    before = gates.gather(1, own_experts.clamp_min(0)).masked_fill(own_experts < 0, 0)
    weighted = _weigh(selected_gates, weights.float(), before, name)
    return index.where(has_expert, own_experts), weighted.where(has_expert, weights.float())


def _weigh(selected_gates: Tensor, weights: Tensor, gates: Tensor, name: str) -> Tensor:
    """Return weights ``(N, K)`` for ``selected_gates``, by the rule behind the router's ``weights`` for its ``gates``.

    It is a multiple of the gates, or the gates brought to one sum for all tokens that are served.
    """
    total = weights.sum(-1)
    # A weight next to nothing is in proportion to anything.
    served = (total > _NOTHING) & (gates.sum(-1) > _NOTHING)
    if not served.any():
        raise UserError(f"The weights of {name} are all zero, so by what rule they follow cannot be known.")
    ratio, total = (total / gates.sum(-1))[served], total[served]
    spread = [
        float((value - value.mean()).abs().max() / value.mean().abs().clamp_min(1e-12))
        for value in (ratio, total)
    ]
    # The rule must hold for all tokens: ratios or sums that vary follow another one.
    if min(spread) > _TOLERANCE:
        raise UserError(f"The weights of {name} follow from its gates by no rule that is known.")
    if spread[0] <= spread[1]:
        scale = ratio.mean()
        # A factor of one except for rounding is one, so that nothing is rounded again.
        return selected_gates if abs(float(scale) - 1) < 1e-5 else selected_gates * scale
    sums = selected_gates.sum(-1, keepdim=True)
    normalized = selected_gates / sums.where(sums > 0, torch.ones_like(sums))
    scale = total.mean()
    return normalized if abs(float(scale) - 1) < 1e-5 else normalized * scale
