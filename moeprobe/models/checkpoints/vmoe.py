"""V-MoE's checkpoints into moeprobe's, and back."""

import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import moeprobe.models.nn  # noqa: F401  (registers the models)
from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.arrays import BFLOAT16, AnyArray, Stored
from moeprobe.models.checkpoints.importing import Unseen, check_folder, class_names, model_config, save
from moeprobe.models.checkpoints.vmoe_files import index_path, read_vmoe, shard_path
from moeprobe.models.checkpoints.vmoe_names import Architecture, parameters, to_state_dict
from moeprobe.models.checkpoints.vmoe_sizes import infer
from moeprobe.models.checkpoints.vmoe_write import held, write_vmoe
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model, is_ours
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import read_json, write_json
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher, watching
from moeprobe.runtime.records import RECORD

_TRAINED = "params/"
_MOST_SHARDS = 99_999  # the files' names have five digits
# What leaves no trace in the parameters: V-MoE's own values, but that nothing is dropped unless somebody says so.
_UNSEEN = {
    "router": "softmax_token_choice", "top_k": 2, "noise_std": 1.0, "capacity_factor": 1.05,
    "eval_capacity_factor": "none", "group_images": 8, "batch_priority": False, "bfloat16_dispatch": False,
    "expert_dropout": 0.0,
}  # fmt: skip
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("<f4"),
    torch.float16: np.dtype("<f2"),
    torch.bfloat16: BFLOAT16,
}


class UnseenOfVmoe(Unseen, total=False):
    """What leaves no trace in a V-MoE's parameters."""

    bfloat16_dispatch: bool


@dataclass(frozen=True)
class Found:
    """The parameters of a V-MoE in a file of V-MoE's.

    Attributes:
        arrays: by V-MoE's names.
        sizes: what was read off their shapes.
        ignored: what else the file holds (optimiser, step …): first key -> entries.
    """

    arrays: dict[str, AnyArray]
    sizes: Architecture
    ignored: dict[str, int]

    def read(self, advance: Callable[[], None] = lambda: None) -> dict[str, Tensor]:
        """Return the state of our model, in the types that are stored; ``advance`` is called for each array."""

        def array(name: str) -> Tensor:
            advance()
            return _tensor(self.arrays[name].read())

        return to_state_dict(array, self.sizes)


@dataclass(frozen=True)
class Imported:
    """What was imported.

    Attributes:
        folder: where it lies.
        sizes: what was read off the parameters.
        model: the whole description; what is not among the sizes was given, or is a default.
        parameters: their number.
        dtypes: of the parameters as stored.
        ignored: as in ``Found``.
        classes: data set whose classes the scores are about, None where nobody said.
    """

    folder: Path
    sizes: Architecture
    model: ModelConfig
    parameters: int
    dtypes: tuple[str, ...]
    ignored: dict[str, int]
    classes: str | None


@dataclass(frozen=True)
class Exported:
    """What was exported: the files, the number of parameters, and their bytes."""

    files: tuple[Path, ...]
    parameters: int
    nbytes: int


@checked
def import_vmoe(
    source: str | Path,
    folder: str | Path,
    *,
    classes: str | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    **settings: Unpack[UnseenOfVmoe],
) -> Imported:
    """Make a checkpoint of moeprobe of one of V-MoE's.

    Args:
        source: the prefix of a sharded checkpoint, a flax msgpack file, or a folder of Orbax's; of a state of
            training, the parameters.
        folder: of the new checkpoint, written whole or not at all.
        classes: data set, ``name`` or ``name:location``, whose classes the scores are about; None = unknown, and
            then nothing is said of accuracy.
        overwrite: replace a checkpoint that is there.
        watcher: told how many of the arrays are read.
        settings: keys of ``ModelConfig`` that leave no trace in the parameters: ``top_k``, ``capacity_factor``,
            ``eval_capacity_factor``, ``group_images``, ``batch_priority``, ``bfloat16_dispatch``, ``mean``, ``std``,
            ``crop_fraction``. Without them the model is as V-MoE's are trained, and evaluates without a limit.

    Raises:
        UserError: the source is damaged or no V-MoE, a setting does not fit, or the folder holds something else.
    """
    source, folder, watcher = Path(source), Path(folder), watching(watcher)
    check_folder(folder, source, overwrite=overwrite)
    found = find(source)
    config = _config(found.sizes, settings)
    names = () if classes is None else class_names(classes, found.sizes.num_classes)
    with torch.device("meta"):
        model = build_model(config)
    watcher.start(f"import {source.name}", len(found.arrays))
    model.load_state_dict(found.read(lambda: watcher.advance(1)), assign=True)
    save(folder, model, config=config, imported="vmoe", source=source, class_names=names)
    return Imported(
        folder=folder,
        sizes=found.sizes,
        model=config,
        parameters=sum(math.prod(array.shape) for array in found.arrays.values()),
        dtypes=tuple(sorted({array.dtype for array in found.arrays.values()})),
        ignored=found.ignored,
        classes=classes,
    )


def find(source: Path) -> Found:
    """Return the parameters that a checkpoint of V-MoE's holds, checked and not read yet.

    Raises:
        UserError: it is damaged, or the parameters are not those of a V-MoE.
    """
    arrays, ignored = _parameters(read_vmoe(source), source)
    sizes = infer({name: array.shape for name, array in arrays.items()}, source=str(source))
    return Found(arrays, sizes, ignored)


@checked
def export_vmoe(
    source: str | Path, prefix: str | Path, *, shards: int = 1, overwrite: bool = False
) -> Exported:
    """Write the parameters of a V-MoE as a checkpoint that V-MoE's program reads.

    Args:
        source: a run folder or a ``.safetensors`` file.
        prefix: of the files ``PREFIX.index`` and ``PREFIX.data-…``.
        shards: number of data shards.
        overwrite: replace a checkpoint of this prefix.

    Raises:
        UserError: the checkpoint is none, or no V-MoE; there are files of the prefix already.
    """
    prefix = Path(prefix)
    if not 1 <= shards <= _MOST_SHARDS:
        raise UserError(f"A checkpoint has 1 to {_MOST_SHARDS:,} shards; got {shards}.")
    if not prefix.name or prefix.is_dir():
        raise UserError(f"{prefix} is a folder; give the beginning of the files' names, e.g. {prefix}/vmoe.")
    if held(prefix) and not overwrite:
        raise UserError(
            f"{held(prefix)[0]} is there already; add --overwrite to replace it, or choose another prefix."
        )
    earlier = _recorded(prefix)
    if foreign := [path for path in held(prefix) if path.name not in earlier]:
        raise UserError(
            f"{foreign[0]} was not exported by moeprobe, and --overwrite replaces nothing else; move it away, or "
            "choose another prefix."
        )
    info, tensors = checkpoint.read_info(source)
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
            f"{info.path} renormalises the weights of the chosen experts; V-MoE's format does not say so, and its "
            "program would not."
        )
    with torch.device("meta"):
        model = build_model(info.model)
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    sizes = _sizes(model)
    rows = list(parameters(sizes))
    if {row.ours for row in rows} != set(wanted):
        odd = sorted({row.ours for row in rows} ^ set(wanted))[0]
        if odd in wanted:
            raise UserError(f"V-MoE's format has no place for {odd!r} of {info.path}.")
        raise UserError(f"V-MoE's format needs {odd!r}, and {info.path} has none.")
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise UserError(f"The parameters in {info.path} do not fit the model it describes.")
    places = {name: (row, part) for row in rows for part, name in enumerate(row.theirs)}

    def array(name: str) -> NDArray[Any]:
        row, part = places[name]
        return _array(row.layout.to_theirs(tensors[row.ours], sizes)[part])

    shapes = {name: (row.shape, _dtype(tensors[row.ours], row.ours)) for name, (row, _) in places.items()}
    # Before they are there, so that they are known after a crash.
    names = [index_path(prefix).name, *(shard_path(prefix, shard, shards).name for shard in range(shards))]
    write_json(_record(prefix), sorted({*earlier, *names}))
    files = write_vmoe(prefix, shapes, array, shards=shards)
    write_json(_record(prefix), sorted(names))
    return Exported(
        files=tuple(files),
        parameters=sum(math.prod(shape) for shape, _ in shapes.values()),
        nbytes=sum(file.stat().st_size for file in files),
    )


def _record(prefix: Path) -> Path:
    """Return where the names of the files of an export are kept: those that ``--overwrite`` may replace."""
    return prefix.with_name(f".{prefix.name}{RECORD}")


def _recorded(prefix: Path) -> set[str]:
    if not os.path.lexists(_record(prefix)):
        return set()
    names = read_json(_record(prefix))
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _parameters(stored: Stored, source: Path) -> tuple[dict[str, AnyArray], dict[str, int]]:
    """Return the parameters by their names, and how much else there is by first key.

    A state of training holds them under ``params``; what is released holds nothing else.

    Raises:
        UserError: a parameter is no array of floating-point numbers.
    """
    names = [*stored.arrays, *stored.others]
    prefix = _TRAINED if any(name.startswith(_TRAINED) for name in names) else ""
    others = [name for name in stored.others if name.startswith(prefix)]
    if others:
        raise UserError(f"In {source}, {quoted(others[0])} is no array, as a parameter should be.")
    arrays = {
        name.removeprefix(prefix): array for name, array in stored.arrays.items() if name.startswith(prefix)
    }
    for name, array in arrays.items():
        if array.dtype not in ("float32", "float16", "bfloat16"):
            raise UserError(
                f"In {source}, {quoted(name)} is {array.dtype}; parameters are float32, bfloat16 or float16."
            )
    return arrays, dict(Counter(name.split("/")[0] for name in names if not name.startswith(prefix)))


def _config(sizes: Architecture, settings: UnseenOfVmoe) -> ModelConfig:
    return model_config(
        {
            "name": "vmoe",
            "image_size": sizes.image_size,
            "patch_size": sizes.patch_size,
            "width": sizes.width,
            "depth": sizes.depth,
            "num_heads": sizes.num_heads,
            "hidden_width": sizes.hidden_width,
            "num_classes": sizes.num_classes,
            "pre_logits": sizes.pre_logits == sizes.width or sizes.pre_logits or False,
            "num_experts": sizes.num_experts,
            "layers": list(sizes.layers),
        }
        | _UNSEEN
        | settings
    )


def _sizes(model: Any) -> Architecture:
    """Return the sizes of a V-MoE of ours."""
    layers = moe_layers(model)
    before_head: Any = model.fc_norm
    experts: Any = next(iter(layers.values())).experts
    squashed = isinstance(before_head, torch.nn.Sequential)
    return Architecture(
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


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


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
