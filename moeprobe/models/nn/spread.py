"""Experts spread over processes: each holds some of them, and tokens travel there and back.

Axes: E experts of a layer, P processes that share them, N rows, D width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from moeprobe.models.nn.experts import ExpertLinear, Experts


class Exchange(Protocol):
    """How rows get from process to process; see ``runtime.distributed.mesh.Mesh``."""

    size: int
    place: int

    def counts(self, own: Tensor) -> Tensor:
        """Send a row of integers to each process, and return theirs."""

    def rows(self, own: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send some rows to each process, and return theirs."""


def keep_share(experts: Experts, exchange: Exchange) -> None:
    """Leave to this process its E / P experts, in place: those from place · E / P on."""
    share = experts.num_experts // exchange.size
    own = slice(exchange.place * share, (exchange.place + 1) * share)
    for layer in experts.modules():
        if isinstance(layer, ExpertLinear):
            for name, whole in list(layer.named_parameters()):
                kept = nn.Parameter(whole.detach()[own].clone(), requires_grad=whole.requires_grad)
                setattr(layer, name, kept)
    experts.num_experts = share


@dataclass(frozen=True)
class SpreadExperts:
    """All E experts of a layer, as a dispatcher sees them, of which this process has some.

    All processes of the exchange run it at the same time, each with tokens of its own, as many as it has.

    Attributes:
        own: the experts of this process.
        exchange: the way to the others.
    """

    own: Experts
    exchange: Exchange

    def prefer_sorted(self, rows: Tensor) -> bool:
        """Whether rows are better sorted: yes, so that none but those of a token travel."""
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
            outputs = self.own(arrived.index_select(0, order), theirs.sum(0))
            arrived = torch.empty_like(outputs).index_copy(0, order, outputs)
        return self.exchange.rows(arrived, received, sent)

    def _padded(self, rows: Tensor) -> Tensor:
        number, width = rows.shape[1:]
        share = self.own.num_experts
        depths = self.exchange.counts(
            torch.full((self.exchange.size, 1), number, dtype=torch.int64, device=rows.device)
        )
        counted = depths.flatten().tolist()
        sent, received = [share * number] * self.exchange.size, [share * depth for depth in counted]
        arrived = self.exchange.rows(rows.reshape(-1, width), sent, received).split(received)
        parts = [part.view(share, depth, width) for part, depth in zip(arrived, counted, strict=True)]
        outputs = self.own(torch.cat(parts, dim=1)).split(counted, dim=1)
        back = torch.cat([part.reshape(-1, width) for part in outputs])
        return self.exchange.rows(back, received, sent).view(len(rows), number, width)
