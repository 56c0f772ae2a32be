"""Tensors of which several processes hold a part each: in memory (``fully_shard``, or a ``Mesh``), and on disk.

In a mesh, processes are in rows and columns: the processes of a row share the experts of a layer, the
processes of a column hold the same ones. Axes: P processes of a row, N rows of a tensor, D width.

On disk they are torch's distributed checkpoint in safetensors files: each process writes its own parts, any number of
them read what they need, and nothing is pickled.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from moeprobe.errors import UserError, option
from moeprobe.runtime.distributed import Alone, Ranks


def shard(model: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks, device: torch.device) -> None:
    """Leave to this process its share of every parameter, in place; a pass puts one block after the other together."""
    with ranks.watching():
        ranks.connect(device.type)
        mesh = init_device_mesh(device.type, (ranks.size,))
        # The rest of the model too is given up after a pass: whoever asks for parameters gets those that are trained.
        for module in (*blocks, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)


def write(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks | Alone) -> None:
    """Write tensors, each process what it has of them; all call this at the same time.

    Raises:
        UserError: the folder cannot be written to.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with ranks.watching(), _file_errors(folder):
        dcp.save(dict(tensors), storage_writer=writer, no_dist=isinstance(ranks, Alone))


def shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape of each tensor that was written, whole, and its type.

    Raises:
        UserError: there are none, or one is damaged.
    """
    with _file_errors(folder):
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    if not metadata:
        raise UserError(
            f"The parts of a state in {folder} are gone; add {option('overwrite', True)} to start again."
        )
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read(targets: Mapping[str, Tensor], folder: Path, ranks: Ranks | Alone) -> None:
    """Load each target by its name, of a ``DTensor`` the local part; all processes call this.

    Raises:
        UserError: there is no such tensor, or it is damaged.
    """
    reader = HuggingFaceStorageReader(str(folder))
    with ranks.watching(), _file_errors(folder):
        dcp.load(dict(targets), storage_reader=reader, no_dist=isinstance(ranks, Alone))


def part_like(full: Tensor, target: Tensor) -> Tensor:
    """Return the part of a tensor that this process has of one that is laid out as ``target`` is."""
    if not isinstance(target, DTensor):
        return full
    on = full.to(target.device_mesh.device_type)
    return distribute_tensor(on, target.device_mesh, target.placements, src_data_rank=None)


@contextmanager
def _file_errors(folder: Path) -> Iterator[None]:
    """Say in a sentence what the library finds wrong with files."""
    try:
        with warnings.catch_warnings():
            # That there is one process alone is no cause for a warning.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise UserError(f"The parts of a state in {folder} cannot be written or read ({reason}).") from error


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

    def full_tensor(self, share: Tensor) -> Any:
        """Return a tensor of which each process of a row holds an equal part of the first axis, as one ``DTensor``."""
        return DTensor.from_local(share.detach(), self._mesh, [Replicate(), Shard(0)], run_check=False)
