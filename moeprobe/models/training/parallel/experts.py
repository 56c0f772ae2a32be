"""Experts spread over processes: each holds some of them, and tokens travel there and back.

Axes: E experts of a layer, P processes that share them, N rows, D width.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from moeprobe.models.nn.experts import ExpertLinear, Experts

if TYPE_CHECKING:
    from moeprobe.models.training.parallel.sharded import Mesh


def keep_share(experts: Experts, exchange: "Mesh") -> None:
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
    exchange: "Mesh"

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
