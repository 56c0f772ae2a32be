"""Which part of a step's batch a forward pass sees, where processes, or passes one after the other, share a step.

Random draws are made for the whole batch, of which each pass takes its own rows: so a step draws the same however it is
shared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Portion:
    """One of ``of`` equal parts of a batch, by its ``number`` from 0."""

    number: int = 0
    of: int = 1


_WHOLE = Portion()
_SEEN: ContextVar[Portion] = ContextVar("portion", default=_WHOLE)


@contextmanager
def seeing(portion: Portion) -> Iterator[None]:
    """Say which part of a batch the passes inside the block see."""
    token = _SEEN.set(portion)
    try:
        yield
    finally:
        _SEEN.reset(token)


def normal(shape: tuple[int, ...], *, device: torch.device) -> Tensor:
    """Return standard normal draws of ``shape``: this part's rows of those of the whole batch."""
    seen = _SEEN.get()
    whole = torch.randn((shape[0] * seen.of, *shape[1:]), device=device, dtype=torch.float32)
    return whole[seen.number * shape[0] : (seen.number + 1) * shape[0]]
