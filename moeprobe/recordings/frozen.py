"""Generated tokens that all carry one choice: of a buffer that a server's CUDA graph does not write again.

The prompt is the yardstick. A router that sends all tokens the same way does so in the prompt too, and text that
repeats one token is left out where token ids are known.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.faults import Finding, frozen


@dataclass
class _Repeats:
    """Tokens of an input after the first one, and how many repeat its choice: the fewest over the layers."""

    tokens: int = 2**31
    same: int = 2**31

    def add(self, sets: NDArray[np.integer]) -> None:
        """Count the tokens of a layer ``(T, K)``."""
        if len(sets):
            self.tokens = min(self.tokens, len(sets) - 1)
            self.same = min(self.same, int((sets[1:] == sets[0]).all(1).sum()))

    @property
    def is_counted(self) -> bool:
        """Whether any layer has two tokens."""
        return 0 < self.tokens < 2**31


class FrozenChoices:
    """A count of repeated choices in prompts and in generated tokens, over all inputs."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Repeats] = defaultdict(_Repeats)
        self._generated: dict[str, _Repeats] = defaultdict(_Repeats)

    def add(
        self,
        identity: str,
        sets: NDArray[np.integer],
        *,
        is_choice: NDArray[np.bool_],
        generated: NDArray[np.bool_],
        ids: NDArray[np.integer] | None,
    ) -> None:
        """Count a layer of an input.

        Args:
            identity: of the input.
            sets: ``(T, K)`` experts in order.
            is_choice: ``(T,)`` which tokens have a choice.
            generated: ``(T,)`` which were generated.
            ids: ``(T,)`` token ids; None where they are not known.
        """
        self._prompts[identity].add(sets[is_choice & ~generated])
        if ids is None or len(np.unique(ids[generated])) != 1:
            self._generated[identity].add(sets[is_choice & generated])

    def findings(self) -> list[Finding]:
        """Return the fault, if that many repeated choices are no chance."""
        prompts = [repeats for repeats in self._prompts.values() if repeats.is_counted]
        inputs = [repeats for repeats in self._generated.values() if repeats.is_counted]
        frozen_inputs = [repeats for repeats in inputs if repeats.same == repeats.tokens]
        repeated, prompt_tokens = (
            sum(repeats.same for repeats in prompts),
            sum(repeats.tokens for repeats in prompts),
        )
        count = sum(repeats.tokens for repeats in frozen_inputs)
        bits = -count * math.log2((repeated + 1) / (prompt_tokens + 2))
        if bits < BITS or 2 * len(frozen_inputs) < len(inputs):
            return []
        tokens = sum(repeats.tokens for repeats in inputs)
        return [frozen(count, tokens, (len(frozen_inputs), len(inputs)), (repeated, prompt_tokens))]


# How improbable it is that routers, and not an empty buffer, make choices that are all zero.

# Zeros that chance makes less often than once in a million are no routing: 2 ** -20.
BITS = 20


def bits_of_zeros(tokens: int, layers: int, top_k: int, num_experts: int) -> float:
    """Return how improbable it is that chance makes tokens zero in so many layers: 2 to the minus this."""
    if top_k > 1:  # one expert twice
        return math.inf if tokens else 0
    return tokens * layers * math.log2(num_experts)
