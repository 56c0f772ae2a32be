"""Processes in rows and columns: a row shares the experts of a layer, a column holds the same ones.

Axes: P processes of a row, N rows of a tensor, D width.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from moeprobe.runtime.distributed.ranks import Ranks


class Mesh:
    """The mesh of all processes, from one of them.

    Args:
        ranks: all processes.
        row: P, how many share; divides their number.
        device: what kind of device the tensors are on.

    Attributes:
        size: P.
        row_rank: which of the P this process is, from 0.
    """

    def __init__(self, ranks: Ranks, row: int, device: torch.device) -> None:
        self._ranks, self.size = ranks, row
        with ranks.watching():
            ranks.connect(device.type)
            self._mesh = init_device_mesh(
                device.type, (ranks.size // row, row), mesh_dim_names=("replicas", "shares")
            )
            self._row, self._column = self._mesh.get_group("shares"), self._mesh.get_group("replicas")
        self.row_rank = self._mesh.get_local_rank("shares")

    def counts(self, counts: Tensor) -> Tensor:
        """Send ``own[p]`` of integers ``(P, n)`` to process p of the row; return what each of them sent, ``(P, n)``."""
        arrived = torch.empty_like(counts)
        with self._ranks.watching():
            dist.all_to_all_single(arrived, counts.contiguous(), group=self._row)
        return arrived

    def rows(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the next ``sent[p]`` of rows ``(N, D)`` to process p; return ``received[p]`` rows of each, in order.

        Gradients take the way back.
        """
        with self._ranks.watching():
            arrived = all_to_all_single_autograd(rows.contiguous(), received, sent, self._row)
            waited: Tensor = wait_tensor(arrived)
        return waited

    def average(self, gradients: list[Tensor]) -> None:
        """Make gradients of shares, each the sum over its row, the mean over all processes."""
        self._ranks.average(gradients, group=self._column)

    def whole(self, share: Tensor) -> Any:
        """Return a tensor of which each process of a row holds an equal part of the first axis, as one ``DTensor``."""
        return DTensor.from_local(share.detach(), self._mesh, [Replicate(), Shard(0)], run_check=False)
