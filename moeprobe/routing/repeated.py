"""Choices that were made elsewhere, as a foreign router would hand them on: with weights by its own rule.

Axes: N tokens, E experts, K choices.
"""

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.routing.record import LayerRouting

# By how much weights may miss a rule that they follow but for rounding (to bfloat16).
_TOLERANCE = 2e-2


def check_sizes(name: str, wanted: LayerRouting, *, num_experts: int, top_k: int) -> None:
    """Raise ``UserError`` unless a routing is of a layer of these sizes."""
    if (wanted.num_experts, wanted.top_k) != (num_experts, top_k):
        raise UserError(
            f"The routing of {name} chooses {wanted.top_k} of {wanted.num_experts} experts, and the model {top_k} of "
            f"{num_experts}: it is of another model."
        )


def repeat(
    gates: Tensor, experts: Tensor, weights: Tensor, wanted: LayerRouting, name: str, *, replayed: bool
) -> tuple[Tensor, Tensor]:
    """Return the experts and weights ``(N, K)`` of a routing; a token without a choice in it keeps its own.

    Args:
        gates: ``(N, E)`` of the router for its present input.
        experts: ``(N, K)`` its own choice, -1 = none.
        weights: ``(N, K)`` what it weighs them by.
        wanted: the routing.
        name: of the layer.
        replayed: the weights follow from the gates in the routing, and not from the present ones.

    Raises:
        UserError: it is of another number of tokens, has no gates to be replayed, or the weights follow no known rule.
    """
    selected = wanted.selected.to(gates.device).long().flatten(0, 1)
    if len(selected) != len(gates):
        raise UserError(
            f"The routing of {name} is of {len(selected)} tokens, and the batch has {len(gates)}."
        )
    chosen = (selected >= 0) & wanted.processed.to(gates.device).flatten(0, 1)
    known = chosen.any(-1, keepdim=True)
    index, own = selected.clamp_min(0), experts.long()
    source = wanted.gates.to(gates.device).float().flatten(0, 1) if replayed else gates
    taken = source.gather(1, index).masked_fill(~chosen, 0)
    if replayed and chosen.any() and not taken.any():
        raise UserError(f"The routing of {name} has no gates; let them be recomputed.")
    before = gates.gather(1, own.clamp_min(0)).masked_fill(own < 0, 0)
    weighted = _weigh(taken, weights.float(), before, name)
    return index.where(known, own), weighted.where(known, weights.float())


def _weigh(taken: Tensor, own: Tensor, gates: Tensor, name: str) -> Tensor:
    """Return weights ``(N, K)`` for gates ``taken``, by the rule that makes the router's ``own`` of its ``gates``.

    It is a multiple of the gates, or the gates brought to one sum for all tokens that are served.
    """
    total = own.sum(-1)
    served = total > 0
    if not served.any():
        raise UserError(f"The weights of {name} are all zero, so by what rule they follow cannot be known.")
    ratio, total = (total / gates.sum(-1).clamp_min(1e-12))[served], total[served]
    spread = [
        float((value - value.mean()).abs().max() / value.mean().abs().clamp_min(1e-12))
        for value in (ratio, total)
    ]
    if min(spread) > _TOLERANCE:
        raise UserError(f"The weights of {name} follow from its gates by no rule that is known.")
    if spread[0] <= spread[1]:
        scale = ratio.mean()
        # A factor of one but for rounding is one, so that nothing is rounded again.
        return taken if abs(float(scale) - 1) < 1e-5 else taken * scale
    sums = taken.sum(-1, keepdim=True)
    brought = taken / sums.where(sums > 0, torch.ones_like(sums))
    scale = total.mean()
    return brought if abs(float(scale) - 1) < 1e-5 else brought * scale
