"""What a router is: tokens and noise in, one record of its decision out.

Axes: G groups, S tokens per group, D width, E experts, K choices, C slots of an expert.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from moeprobe.models.nn.plans import CapacityRule, DispatchPlan, FullPlan, SoftPlan
from moeprobe.routing.router_rows import Start


@dataclass(frozen=True)
class Decision:
    """All that a router decided in one forward pass. Objectives and traces read it from outside (``capture``).

    Attributes:
        logits: ``(G, S, E)`` without noise; ``(G, S, E·C)`` where tokens are weighed against slots.
        noisy_logits: the same with the noise that the choice was made on; the same tensor where there is none.
        gates: ``(G, S, E)`` weights that the combination uses, of the experts that take the token; where the router
            renormalizes, before that.
        clean_gates: ``(G, S, E)`` the same from the logits without noise.
        scores: ``(G, S, E)`` what the choice is read off where that is not the gates, else None.
        selected: ``(G, S, K)`` chosen experts, best first, before capacity, -1 = none; K = E where experts choose, 0
            where every expert gets a share of every token.
        processed: ``(G, S, K)`` bool, which choices fit the capacity.
        top_k: experts that each token chooses; None where tokens do not choose.
        noise_scale: standard deviation of the noise on the logits; 0 without noise.
        plan: the dispatch and combination.
        transport: ``(G, S, E)`` the sparse transport plan that the choice is read off; None where there is none.
    """

    logits: Tensor
    noisy_logits: Tensor
    gates: Tensor
    clean_gates: Tensor
    scores: Tensor | None
    selected: Tensor
    processed: Tensor
    top_k: int | None
    noise_scale: float
    plan: DispatchPlan | SoftPlan | FullPlan
    transport: Tensor | None = None


@dataclass(frozen=True)
class ScoringRows:
    """What a router scores experts by: ``weight`` ``(R, D)``, how it starts, and ``bias`` ``(R,)`` or None.

    R is the number of experts, or of the slots of all experts. ``is_choice_by_scores`` as of ``RouterRows``.
    """

    weight: Tensor
    start: Start
    bias: Tensor | None = None
    is_choice_by_scores: bool = True


class Router(nn.Module, ABC):
    """A rule that sends tokens to experts. Its parameters, with their defaults, are the arguments of ``__init__``.

    Attributes:
        token_local: a token's choice does not depend on the other tokens.
        gates_sum_to_one: the gates of a token are a distribution over the experts.
        fills_experts: assignments depend on the capacity (experts take a fixed number of tokens, or send on
            the excess), so the capacity is part of the choice, and applies while probing.
        mixes_tokens: experts run on mixtures of all tokens of an image, so every token meets every expert and there is
            nothing to choose; no image knows of another.
        default_capacity: the rule in training where none is given. In evaluation it is the same where the capacity
            is part of the choice, else without limit.
        default_group_images: images of a group in training where no number is given.
        renormalise: a token's weights are divided by the sum of those it has chosen.
        top_k: experts that each token chooses; None where tokens do not choose.
        capacity: the rule in training.
        eval_capacity: the rule in evaluation; probing replaces it where it can.
    """

    token_local: ClassVar[bool]
    gates_sum_to_one: bool
    fills_experts: ClassVar[bool] = False
    mixes_tokens: ClassVar[bool] = False
    default_capacity: ClassVar[CapacityRule] = CapacityRule(1.05)
    default_group_images: ClassVar[int] = 8
    renormalise: bool = False
    num_experts: int
    top_k: int | None
    noise_std: float
    capacity: CapacityRule
    eval_capacity: CapacityRule

    def experts_per_token(self, group_size: int) -> float:
        """Return how often an expert runs per token in evaluation; without a limit, where there can be none."""
        if self.top_k is not None:
            return self.top_k
        capacity = self.eval_capacity.capacity(group_size=group_size, num_experts=self.num_experts, top_k=1)
        assert capacity is not None
        return min(capacity, group_size) * self.num_experts / group_size

    @property
    def num_logits(self) -> int:
        """Logits of a token: E, or E·C where tokens are weighed against slots."""
        return self.num_experts

    def expert_rows(self) -> ScoringRows | None:
        """Return the rows that experts are scored by; None where there is not one for each."""
        return None

    @abstractmethod
    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal, shaped as the logits, None for none."""

    def _places(self, group_size: int) -> int | None:
        """Return C, the tokens of a group of ``group_size`` that an expert takes at present; None without limit."""
        rule = self.capacity if self.training else self.eval_capacity
        return rule.capacity(
            group_size=group_size, num_experts=self.num_experts, top_k=1 if self.top_k is None else self.top_k
        )
