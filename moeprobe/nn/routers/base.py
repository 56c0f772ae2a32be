"""What a router is: tokens and noise in, one record of its decision out.

Axes: G groups, S tokens per group, D width, E experts, K choices.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from moeprobe.nn.dispatch import CapacityRule, DispatchPlan


@dataclass(frozen=True)
class Decision:
    """All that a router decided in one forward pass. Objectives and traces read it from outside (``capture``).

    Attributes:
        logits: ``(G, S, E)`` without noise.
        noisy_logits: ``(G, S, E)`` that the choice was made on; the same tensor where there is no noise.
        gates: ``(G, S, E)`` weights that the combination uses.
        clean_gates: ``(G, S, E)`` the same from the logits without noise.
        selected: ``(G, S, K)`` chosen experts, best first, before capacity.
        noise_scale: standard deviation of the noise on the logits; 0 without noise.
        plan: the dispatch and combination.
    """

    logits: Tensor
    noisy_logits: Tensor
    gates: Tensor
    clean_gates: Tensor
    selected: Tensor
    noise_scale: float
    plan: DispatchPlan


class Router(nn.Module, ABC):
    """A rule that sends tokens to experts.

    Attributes:
        token_local: a token's choice does not depend on the other tokens.
        gates_sum_to_one: the gates of a token are a distribution over the experts.
        capacity: the rule in training.
        eval_capacity: the rule in evaluation; probing replaces it.
    """

    token_local: ClassVar[bool]
    gates_sum_to_one: ClassVar[bool]
    num_experts: int
    top_k: int
    noise_std: float
    capacity: CapacityRule
    eval_capacity: CapacityRule

    @abstractmethod
    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
