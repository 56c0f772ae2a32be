"""Random draws of a step whose batch is shared by processes, or by passes one after the other.

They are made for the whole batch, of which each pass takes its own rows: so a step draws the same however it is shared.
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
    """Return standard normal draws of ``shape``: this part's rows of the draws for the whole batch."""
    portion = _SEEN.get()
    draws = torch.randn((shape[0] * portion.of, *shape[1:]), device=device, dtype=torch.float32)
    return draws[portion.number * shape[0] : (portion.number + 1) * shape[0]]
