"""moeprobe's checkpoints into V-MoE's."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError, already_finished, option
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.arrays import BFLOAT16
from moeprobe.models.checkpoints.header import CheckpointInfo
from moeprobe.models.checkpoints.vmoe_files import index_path, shard_path
from moeprobe.models.checkpoints.vmoe_names import VmoeSizes, parameters
from moeprobe.models.checkpoints.vmoe_write import existing_files, write_vmoe
from moeprobe.models.nn.build import build_model, is_ours
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.files import Scratch, has_same_bytes, is_folder, is_there, read_json, write_json
from moeprobe.runtime.records import RECORD

_MOST_SHARDS = 99_999  # the files' names have five digits
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("<f4"),
    torch.float16: np.dtype("<f2"),
    torch.bfloat16: BFLOAT16,
}


@dataclass(frozen=True)
class Exported:
    """What was exported: the files, the number of parameters, and their bytes."""

    files: tuple[Path, ...]
    parameters: int
    nbytes: int


@check_arguments
def export_vmoe(
    source: str | Path, prefix: str | Path, *, shards: int = 1, overwrite: bool = False
) -> Exported:
    """Write the parameters of a V-MoE as a checkpoint that V-MoE's program reads.

    Args:
        source: a run folder or a ``.safetensors`` file.
        prefix: of the files ``PREFIX.index`` and ``PREFIX.data-…``.
        shards: number of data shards.
        overwrite: replace a checkpoint of this prefix; without it an equal checkpoint stays.

    Raises:
        UserError: the checkpoint is none, or no V-MoE; there is another checkpoint of the prefix already.
    """
    prefix = Path(prefix)
    if not 1 <= shards <= _MOST_SHARDS:
        raise UserError(f"A checkpoint has 1 to {_MOST_SHARDS:,} shards; got {shards}.")
    if not prefix.name or is_folder(prefix):
        raise UserError(f"{prefix} is a folder; give the beginning of the files' names, e.g. {prefix}/vmoe.")
    names = [index_path(prefix).name, *(shard_path(prefix, shard, shards).name for shard in range(shards))]
    earlier, existing = _read_record(prefix), existing_files(prefix)
    # The index comes last: without it an earlier export was interrupted.
    is_complete = index_path(prefix) in existing
    foreign = [path for path in existing if path.name not in earlier]
    if not overwrite and (foreign or (is_complete and {path.name for path in existing} != set(names))):
        raise _another(existing[0])
    if foreign:
        raise UserError(
            f"{foreign[0]} was not exported by moeprobe, and {option('overwrite')} replaces nothing else; move it "
            "away, or choose another prefix."
        )
    info, tensors = checkpoint.read_info(source)
    _check_format(info)
    with torch.device("meta"):
        model = build_model(info.model)
    model_shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    sizes = _sizes(model)
    rows = list(parameters(sizes))
    if {row.ours for row in rows} != set(model_shapes):
        odd = sorted({row.ours for row in rows} ^ set(model_shapes))[0]
        if odd in model_shapes:
            raise UserError(f"V-MoE's format has no place for {odd!r} of {info.path}.")
        raise UserError(f"V-MoE's format needs {odd!r}, and {info.path} has none.")
    if {name: tensor.shape for name, tensor in tensors.items()} != model_shapes:
        raise UserError(f"The parameters in {info.path} do not fit the model it describes.")
    sources = {name: (row, part) for row in rows for part, name in enumerate(row.theirs)}

    def array(name: str) -> NDArray[Any]:
        row, part = sources[name]
        return _array(row.layout.to_theirs(tensors[row.ours], sizes)[part])

    shapes = {name: (row.shape, _dtype(tensors[row.ours], row.ours)) for name, (row, _) in sources.items()}
    if is_complete and not overwrite:
        scratch = Scratch()
        same = write_vmoe(scratch.path / prefix.name, shapes, array, shards=shards)
        files = [prefix.with_name(path.name) for path in same]
        if not all(map(has_same_bytes, same, files)):
            raise _another(existing[0])
        warnings.warn(already_finished(prefix), stacklevel=3)
    else:
        # Before they are there, so that they are known after a crash.
        write_json(_record(prefix), sorted({*earlier, *names}))
        files = write_vmoe(prefix, shapes, array, shards=shards)
        write_json(_record(prefix), sorted(names))
    return Exported(
        files=tuple(files),
        parameters=sum(math.prod(shape) for shape, _ in shapes.values()),
        nbytes=sum(file.stat().st_size for file in files),
    )


def _check_format(info: CheckpointInfo) -> None:
    """Raise ``UserError`` unless V-MoE's format can say what the model is."""
    if not is_ours(info.model.name):
        raise UserError(
            f"{info.path} is a {info.model.name} made sparse, which is no V-MoE; its format has no place for that."
        )
    if info.model.router_name != "softmax_token_choice":
        raise UserError(
            f"{info.path} is routed by {info.model.router_name}; V-MoE's format does not say how a model is routed, "
            "and its program would read it as softmax_token_choice."
        )
    if info.model.router is not None and info.model.router.parameters.get("renormalise"):
        raise UserError(
            f"{info.path} renormalizes the weights of the chosen experts; V-MoE's format does not say so, and its "
            "program would not."
        )


def _another(path: Path) -> UserError:
    return UserError(
        f"{path} is there already; add {option('overwrite', True)} to replace it, or choose another prefix."
    )


def _record(prefix: Path) -> Path:
    """Return where the names of the files of an export are kept: those that ``--overwrite`` may replace."""
    return prefix.with_name(f".{prefix.name}{RECORD}")


def _read_record(prefix: Path) -> set[str]:
    if not is_there(_record(prefix)):
        return set()
    names = read_json(_record(prefix))
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _sizes(model: Any) -> VmoeSizes:
    """Return the sizes of a V-MoE of ours."""
    layers = moe_layers(model)
    before_head: Any = model.fc_norm
    experts: Any = next(iter(layers.values())).experts
    squashed = isinstance(before_head, torch.nn.Sequential)
    return VmoeSizes(
        width=model.embed_dim,
        depth=len(model.blocks),
        num_heads=model.blocks[0].attn.num_heads,
        hidden_width=experts.fc1.weight.shape[2],
        patch_size=model.patch_embed.patch_size[0],
        image_size=model.patch_embed.img_size[0],
        num_classes=model.num_classes,
        num_experts=experts.num_experts,
        layers=tuple(int(name.split(".")[1]) for name in layers),
        pre_logits=int(before_head[0].out_features) if squashed else 0,
    )


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _dtype(tensor: Tensor, name: str) -> np.dtype[Any]:
    if tensor.dtype not in _DTYPES:
        raise UserError(f"{name!r} is {tensor.dtype}; parameters are float32, bfloat16 or float16.")
    return _DTYPES[tensor.dtype]
