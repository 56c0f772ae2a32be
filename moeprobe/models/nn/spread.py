"""Experts spread over processes: each holds some of them, and tokens travel there and back.

Axes: E experts of a layer, P processes that share them, N rows, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from moeprobe.models.nn.experts import ExpertLinear, Experts


class RowExchange(Protocol):
    """How rows get from process to process; see ``runtime.distributed.sharded.Mesh``."""

    size: int
    row_rank: int

    def counts(self, row: Tensor) -> Tensor:
        """Send a row of integers to each process, and return theirs."""

    def rows(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send some rows to each process, and return theirs."""


def keep_share(experts: Experts, exchange: RowExchange) -> None:
    """Leave to this process its E / P experts, in place: those from row_rank · E / P on."""
    share = experts.num_experts // exchange.size
    share_slice = slice(exchange.row_rank * share, (exchange.row_rank + 1) * share)
    for layer in experts.modules():
        if isinstance(layer, ExpertLinear):
            for name, parameter in list(layer.named_parameters()):
                share_parameter = nn.Parameter(
                    parameter.detach()[share_slice].clone(), requires_grad=parameter.requires_grad
                )
                setattr(layer, name, share_parameter)
    experts.num_experts = share


@dataclass(frozen=True)
class SpreadExperts:
    """All E experts of a layer, as a dispatcher sees them, of which this process has some.

    All processes of the exchange run it at the same time, each with tokens of its own, as many as it has.

    Attributes:
        local_experts: the experts of this process.
        exchange: the way to the others.
    """

    local_experts: Experts
    exchange: RowExchange

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether rows are better sorted: yes, so that only rows of tokens travel."""
        return True

    def __call__(self, rows: Tensor, loads: Tensor | None = None) -> Tensor:
        """Run expert e on ``rows[e]`` of ``(E, N, D)``, or, with ``loads``, on its part of sorted rows ``(N, D)``."""
        return self._padded(rows) if loads is None else self._ragged(rows, loads)

    def _ragged(self, rows: Tensor, loads: Tensor) -> Tensor:
        mine = loads.view(self.exchange.size, -1)
        theirs = self.exchange.counts(mine)
        sent, received = mine.sum(1).tolist(), theirs.sum(1).tolist()
        arrived = self.exchange.rows(rows, sent, received)
        if len(arrived):
            # From (process, expert) to (expert, process), and back.
            expert = torch.arange(theirs.shape[1], device=rows.device).repeat(len(theirs))
            order = expert.repeat_interleave(theirs.flatten()).argsort(stable=True)
            outputs = self.local_experts(arrived.index_select(0, order), theirs.sum(0))
            arrived = torch.empty_like(outputs).index_copy(0, order, outputs)
        return self.exchange.rows(arrived, received, sent)

    def _padded(self, rows: Tensor) -> Tensor:
        number, width = rows.shape[1:]
        share = self.local_experts.num_experts
        depths = self.exchange.counts(
            torch.full((self.exchange.size, 1), number, dtype=torch.int64, device=rows.device)
        )
        depth_list = depths.flatten().tolist()
        sent, received = [share * number] * self.exchange.size, [share * depth for depth in depth_list]
        arrived = self.exchange.rows(rows.reshape(-1, width), sent, received).split(received)
        parts = [part.view(share, depth, width) for part, depth in zip(arrived, depth_list, strict=True)]
        outputs = self.local_experts(torch.cat(parts, dim=1)).split(depth_list, dim=1)
        back = torch.cat([part.reshape(-1, width) for part in outputs])
        return self.exchange.rows(back, received, sent).view(len(rows), number, width)


# Which part of a step's batch a forward pass sees, where processes, or passes one after the other, share a step.
#
# Random draws are made for the whole batch, of which each pass takes its own rows: so a step draws the same
# however it is shared.


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
