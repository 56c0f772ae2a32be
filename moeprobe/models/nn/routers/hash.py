"""Hash routing: a fixed hash of the token names its experts, the baseline of a router that knows nothing of the task.

Axes: G groups, S tokens per group, D width, E experts, K choices, b bits.

Source: Roller et al. 2021 hash the word, which a patch does not have; here its features are hashed by the signs of
random projections (Charikar 2002), so that near tokens meet. The experts of a hash: Thaler and Ravishankar 1998.
"""

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.nn.plans import CapacityRule, plan_token_choice
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import (
    LimitedRouter,
    Limits,
    Logits,
    at_least_float32,
    chosen_by_tokens,
    top_choices,
    without_autocast,
)

_WORD = 0xFFFFFFFF  # 32 bits


class Hash(LimitedRouter):
    """Hash: the signs of ``bits`` random projections of a token are mixed to k distinct experts, of weight 1 / k.

    The projections are drawn once, never trained, and saved with the checkpoint. Every (code, expert) pair has a
    pseudorandom priority, and a token's experts are the k of highest priority for its code: 2^b codes in all, so few
    bits load the experts unevenly, and many part near tokens. The priorities take the place of logits; no gradient goes
    through them nor through the weights, so losses on the gates make no sense here.

    Raises:
        UserError: ``bits`` is not between 1 and 32.
    """

    token_local = True

    def __init__(
        self,
        width: int,
        num_experts: int,
        top_k: int = 2,
        *,
        bits: int = 8,
        capacity: CapacityRule | None = None,
        eval_capacity: CapacityRule | None = None,
    ) -> None:
        super().__init__(num_experts, Limits(top_k, capacity, eval_capacity))
        if not 1 <= bits <= 32:
            raise UserError(f"A hash has between 1 and 32 bits; got {bits}.")
        self.projections: Tensor
        self.register_buffer("projections", torch.randn(bits, width))

    def forward(self, tokens: Tensor, noise: Tensor | None = None) -> Decision:
        """Route tokens ``(G, S, D)``; ``noise`` must be None."""
        if noise is not None:
            raise ValueError("A hash router takes no noise.")
        assert self.top_k is not None
        with without_autocast(tokens), torch.no_grad():
            priority = priorities(self._codes(tokens), self.num_experts)
            selected = top_choices(priority, self.top_k)
            gates = torch.zeros_like(priority).scatter(-1, selected, 1 / self.top_k)
            plan = plan_token_choice(gates, selected, capacity=self._places(tokens.shape[1]))
        logits = Logits(priority, priority, 0.0)
        return chosen_by_tokens(logits, gates, gates, selected, plan, scores=priority)

    def _codes(self, tokens: Tensor) -> Tensor:
        """Return the b signs of each token's projections as one integer ``(G, S)``."""
        signs = nn.functional.linear(at_least_float32(tokens), at_least_float32(self.projections)) > 0
        powers = 1 << torch.arange(signs.shape[-1], device=signs.device)
        return (signs * powers).sum(-1)


def priorities(codes: Tensor, num_experts: int) -> Tensor:
    """Return a pseudorandom number ``(..., E)`` in [0, 1) for every expert and code ``(...)`` below 2^32."""
    expert = torch.arange(num_experts, device=codes.device)
    mixed = _mix(_mix(codes)[..., None] ^ _mix(expert + 1))
    # 24 of the 32 bits: as many as float32 holds exactly.
    return (mixed >> 8).float() / (1 << 24)


def _mix(words: Tensor) -> Tensor:
    """Return 32-bit words, held as int64, with every bit spread over all (a bijection)."""
    words = ((words ^ (words >> 16)) * 0x45D9F3B) & _WORD
    words = ((words ^ (words >> 16)) * 0x45D9F3B) & _WORD
    return words ^ (words >> 16)
