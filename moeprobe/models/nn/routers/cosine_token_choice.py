"""Tutel's cosine router: each token takes its k best experts by the angle to them in a narrow space.

Axes: G groups, S tokens per group, D width, E experts, K choices, N width of the narrow space.

Source: Tutel's ``cosine_top`` gate (Hwang et al. 2023), after X-MoE (Chi et al. 2022).
"""

import math

import torch
from torch import Tensor, nn

from moeprobe.models.nn.initialization import lecun_normal
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision, ScoringRows
from moeprobe.models.nn.routers.rules.linear import (
    LimitedRouter,
    Limits,
    Logits,
    at_least_float32,
    choose_by_softmax,
    without_autocast,
)
from moeprobe.routing.router_rows import Start

# Standard deviation of the directions at the start; their length has no effect.
_DIRECTIONS_STD = 0.01
# The temperature cannot fall below this, however it is trained.
_LEAST_TEMPERATURE = 0.01


class CosineTokenChoice(LimitedRouter):
    """Cosine token choice: top-k of softmax(cos(x P + b, e) / τ), with learned directions e and temperature τ.

    Args:
        width: D.
        num_experts: E.
        top_k: K.
        projection_width: N, the width of P.
        temperature: τ at the start.
        noise_std: in training, noise of standard deviation noise_std / E is added to the logits.
        capacity: in training.
        eval_capacity: in evaluation.
        batch_priority: tokens with the largest gates come first where capacity is short.
        renormalise: a token's weights are divided by their sum over its K experts.
    """

    token_local = True

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        projection_width: int = 256,
        temperature: float = 0.5,
        noise_std: float = 1.0,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
        batch_priority: bool = False,
        renormalise: bool = False,
    ) -> None:
        super().__init__(num_experts, Limits(top_k, capacity, eval_capacity, noise_std))
        self.projection = nn.Linear(width, projection_width)
        lecun_normal(self.projection)
        self.directions = nn.Parameter(torch.randn(projection_width, num_experts).mul_(_DIRECTIONS_STD))
        self.log_scale = nn.Parameter(torch.full((1,), -math.log(temperature)))
        self.batch_priority = batch_priority
        self.renormalise = renormalise

    def expert_rows(self) -> ScoringRows:
        """Return the directions in the narrow space."""
        return ScoringRows(self.directions.T, Start("normal", _DIRECTIONS_STD), is_choice_by_scores=False)

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` is standard normal ``(G, S, E)``, None for none."""
        assert self.top_k is not None
        with without_autocast(tokens):
            return choose_by_softmax(
                self._logits(tokens, noise),
                top_k=self.top_k,
                capacity=self._places(tokens.shape[1]),
                batch_priority=self.batch_priority,
                renormalise=self.renormalise,
            )

    def _logits(self, tokens: Tensor, noise: Tensor | None) -> Logits:
        weight, bias = (at_least_float32(part) for part in (self.projection.weight, self.projection.bias))
        projected = nn.functional.linear(at_least_float32(tokens), weight, bias)
        cosine = nn.functional.normalize(projected, dim=-1) @ nn.functional.normalize(
            at_least_float32(self.directions), dim=0
        )
        clean = cosine * self.log_scale.clamp(max=-math.log(_LEAST_TEMPERATURE)).exp()
        return Logits.of(clean, noise, scale=self.noise_std / self.num_experts)
