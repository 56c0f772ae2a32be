"""Priority routing: an expert takes its best tokens, and a token that finds it full goes to its next choice.

Axes: G groups, S tokens per group, D width, E experts, K choices, C tokens that an expert takes of a group.

Source: "priority routing" of Teo, "Exploring Mixture of Experts and Sparse Vision Transformers" (thesis, Durham
University), which leaves open who yields to whom. Read here as the stable assignment of Gale and Shapley 1962.
"""

import torch
from torch import Tensor

from moeprobe.models.nn.plans import CapacityRule, plan_choices, plan_token_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import (
    Limits,
    LinearRouter,
    chosen_by_tokens,
    top_choices,
    without_autocast,
)


class Priority(LinearRouter):
    """Priority routing: top-k of a noisy softmax, where an expert keeps its C best tokens and sends on the others.

    Every token asks its k best experts; an expert keeps the C with the largest gates of those that ask and refuses
    the rest; a refused token asks the best expert that has not refused it yet, and may push out another there; until
    nobody is refused. Both sides rank by the same gate. So the outcome is the same as going through all (token,
    expert) pairs from the largest gate down, and taking each whose token has fewer than k experts and whose expert has
    capacity left.
    Ties go to the earlier token, then the lower expert.

    ``selected`` is where a token ends up, so one that overflowed has chosen another expert. Only where fewer than k
    experts will have a token do its best refusals take their place, as dropped. Who goes where thus depends on the
    room: the capacity is kept in evaluation and in probing, and an image is a group of its own by default. Without a
    limit (capacity factor none) this is ``softmax_token_choice``.
    """

    token_local = False
    fills_experts = True
    default_group_images = 1

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        noise_std: float = 1.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(width, num_experts, Limits(top_k, capacity, eval_capacity, noise_std))

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        with without_autocast(tokens):
            logits = self._logits(tokens, noise)
            gates, clean_gates = logits.softmax()
            assert self.top_k is not None
            capacity = self._places(tokens.shape[1])
            if capacity is None:
                selected = top_choices(gates, self.top_k)
                plan = plan_token_choice(gates, selected, capacity=None)
            else:
                selected, accepted = assign(gates.detach(), top_k=self.top_k, capacity=capacity)
                plan = plan_choices(gates, selected, accepted, capacity=capacity)
            return chosen_by_tokens(logits, gates, clean_gates, selected, plan)


def assign(gates: Tensor, *, top_k: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the experts ``(G, S, K)`` that tokens end up with, best first, and whether they hold them.

    What is not held is the best of the experts that refused the token; there are such only where all of them did.

    Args:
        gates: ``(G, S, E)``, by which tokens and experts rank one another.
        top_k: experts that a token may have.
        capacity: tokens of a group that an expert may have.
    """
    num_groups, group_size, num_experts = gates.shape
    preferences = gates.argsort(dim=-1, descending=True, stable=True)
    # A pair's cell in a table with the tokens of each expert in its own order, best first.
    ranked = gates.transpose(1, 2).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(ranked).scatter(
        -1, ranked, torch.arange(group_size, device=gates.device).expand_as(ranked)
    )
    cell = (preferences * group_size + rank.transpose(1, 2).gather(-1, preferences)).flatten(1)
    refused = torch.zeros_like(preferences, dtype=torch.bool)
    while True:
        proposals = ~refused & ((~refused).cumsum(-1) <= top_k)
        table = torch.zeros_like(cell, dtype=torch.bool).scatter(1, cell, proposals.flatten(1))
        table = table.view(num_groups, num_experts, group_size)
        # Who asks now yields only to better ones: with C better ones ahead, asking later would be in vain too.
        ahead = table.cumsum(-1, dtype=torch.int32) - table.int()
        refused = (ahead >= capacity).flatten(1).gather(1, cell).view_as(proposals)
        if not (proposals & refused).any():
            break
    missing = top_k - proposals.sum(-1, keepdim=True)
    listed = proposals | (~proposals & ((~proposals).cumsum(-1) <= missing))
    order = listed.byte().argsort(dim=-1, descending=True, stable=True)[..., :top_k]
    return preferences.gather(-1, order), proposals.gather(-1, order)
