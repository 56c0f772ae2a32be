"""Tensors of which several processes hold a part each: in memory (``fully_shard``), and on disk.

On disk they are torch's distributed checkpoint in safetensors files: each process writes its own parts, any number of
them read what they need, and nothing is pickled.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from moeprobe.errors import UserError
from moeprobe.runtime.distributed.ranks import Alone, Ranks


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
    with ranks.watching(), _said(folder):
        dcp.save(dict(tensors), storage_writer=writer, no_dist=isinstance(ranks, Alone))


def shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape of each tensor that was written, whole, and its type.

    Raises:
        UserError: there are none, or one is damaged.
    """
    with _said(folder):
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    if not metadata:
        raise UserError(f"The parts of a state in {folder} are gone; add --overwrite to start again.")
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
    with ranks.watching(), _said(folder):
        dcp.load(dict(targets), storage_reader=reader, no_dist=isinstance(ranks, Alone))


def part_like(whole: Tensor, wanted: Tensor) -> Tensor:
    """Return the part of a tensor that this process has of one that is laid out as ``wanted`` is."""
    if not isinstance(wanted, DTensor):
        return whole
    on = whole.to(wanted.device_mesh.device_type)
    return distribute_tensor(on, wanted.device_mesh, wanted.placements, src_data_rank=None)


@contextmanager
def _said(folder: Path) -> Iterator[None]:
    """Say in a sentence what the library finds wrong with files."""
    try:
        with warnings.catch_warnings():
            # That there is one process alone is no cause for a warning.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise UserError(f"The parts of a state in {folder} cannot be written or read ({reason}).") from error
