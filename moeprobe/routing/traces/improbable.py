"""How improbable it is that routers, and not an empty buffer, make choices that are all zero."""

import math

# Zeros that chance makes less often than once in a million are no routing: 2 ** -20.
BITS = 20


def bits_of_zeros(tokens: int, layers: int, top_k: int, num_experts: int) -> float:
    """Return how improbable it is that chance makes tokens zero in so many layers: 2 to the minus this."""
    if top_k > 1:  # one expert twice
        return math.inf if tokens else 0
    return tokens * layers * math.log2(num_experts)
