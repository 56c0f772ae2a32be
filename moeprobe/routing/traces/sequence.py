"""A sequence of tokens: its prompt, and what was generated."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.routing.traces.log_rows import MOST_TOKEN, Fault


@dataclass(frozen=True)
class Tokens:
    """A sequence: its token ids ``(T,)``, the first ``prompt`` of which are the prompt's."""

    ids: NDArray[np.int32]
    prompt: int

    @property
    def generated(self) -> NDArray[np.bool_]:
        """``(T,)`` which tokens were generated."""
        return np.arange(len(self.ids)) >= self.prompt


def token_array(value: Any, name: str) -> NDArray[np.int32]:
    """Return token ids ``(T,)`` of a list or an array; ``name``: what it is called where it is from.

    Raises:
        Fault: these are no token ids.
    """
    if isinstance(value, np.ndarray):
        whole = (
            value.ndim == 1
            and value.dtype.kind in "iu"
            and bool(((value >= 0) & (value <= MOST_TOKEN)).all())
        )
    else:
        whole = isinstance(value, list) and all(type(one) is int and 0 <= one <= MOST_TOKEN for one in value)
    if not whole:
        raise Fault(f"{name} takes a list of token ids, whole numbers from 0 to {MOST_TOKEN:,}")
    return np.array(value, np.int32)
