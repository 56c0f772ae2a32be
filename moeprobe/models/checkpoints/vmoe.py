"""V-MoE's checkpoints into moeprobe's."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.arrays import BFLOAT16, AnyArray, StoredArrays
from moeprobe.models.checkpoints.importing import Unseen, check_folder, class_names, model_config, save
from moeprobe.models.checkpoints.vmoe_files import read_vmoe
from moeprobe.models.checkpoints.vmoe_names import VmoeSizes, infer, to_state_dict
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.characters import quote
from moeprobe.runtime.progress import Progress, progress_of

_TRAINED = "params/"
# What leaves no trace in the parameters: V-MoE's own values, but that nothing is dropped unless somebody says so.
_UNSEEN = {
    "router": "softmax_token_choice", "top_k": 2, "noise_std": 1.0, "capacity_factor": 1.05,
    "eval_capacity_factor": "none", "group_images": 8, "batch_priority": False, "bfloat16_dispatch": False,
    "expert_dropout": 0.0,
}  # fmt: skip


class UnseenOfVmoe(Unseen, total=False):
    """What leaves no trace in a V-MoE's parameters."""

    bfloat16_dispatch: bool


@dataclass(frozen=True)
class WeightsOfVmoe:
    """The parameters of a V-MoE in a file of V-MoE's.

    Attributes:
        arrays: by V-MoE's names.
        sizes: derived from their shapes.
        ignored: what else the file holds (optimizer, step …): first key -> entries.
    """

    arrays: dict[str, AnyArray]
    sizes: VmoeSizes
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
        folder: its run folder.
        sizes: derived from the parameters.
        model: the whole description; anything not among the sizes was given, or is a default.
        parameters: their number.
        dtypes: of the parameters as stored.
        ignored: what else the file holds (optimizer, step …): first key -> entries.
        classes: data set whose classes the scores are about, None where nobody said.
    """

    folder: Path
    sizes: VmoeSizes
    model: ModelConfig
    parameters: int
    dtypes: tuple[str, ...]
    ignored: dict[str, int]
    classes: str | None


@check_arguments
def import_vmoe(
    source: str | Path,
    folder: str | Path,
    *,
    classes: str | None = None,
    overwrite: bool = False,
    watcher: Progress | None = None,
    **settings: Unpack[UnseenOfVmoe],
) -> Imported:
    """Convert a checkpoint of V-MoE to one of moeprobe.

    Args:
        source: the prefix of a sharded checkpoint, a flax msgpack file, or a folder of Orbax's; of a state of
            training, the parameters.
        folder: of the new checkpoint, written whole or not at all.
        classes: data set, ``name`` or ``name:location``, whose classes the scores are about; None = unknown, and
            then nothing is said of accuracy.
        overwrite: replace a checkpoint that is there.
        watcher: shows the arrays read.
        settings: keys of ``ModelConfig`` that leave no trace in the parameters: ``top_k``, ``capacity_factor``,
            ``eval_capacity_factor``, ``group_images``, ``batch_priority``, ``bfloat16_dispatch``, ``mean``, ``std``,
            ``crop_fraction``. Without them the model is as V-MoE's are trained, and evaluates without a limit.

    Raises:
        UserError: the source is damaged or no V-MoE, a setting does not fit, or the folder holds something else.
    """
    source, folder, watcher = Path(source), Path(folder), progress_of(watcher)
    check_folder(folder, source, overwrite=overwrite)
    stored = find(source)
    config = _config(stored.sizes, settings)
    names = () if classes is None else class_names(classes, stored.sizes.num_classes)
    with torch.device("meta"):
        model = build_model(config)
    watcher.start(f"import {source.name}", len(stored.arrays))
    model.load_state_dict(stored.read(lambda: watcher.advance(1)), assign=True)
    save(folder, model, config=config, imported="vmoe", source=source, class_names=names, overwrite=overwrite)
    return Imported(
        folder=folder,
        sizes=stored.sizes,
        model=config,
        parameters=sum(math.prod(array.shape) for array in stored.arrays.values()),
        dtypes=tuple(sorted({array.dtype for array in stored.arrays.values()})),
        ignored=stored.ignored,
        classes=classes,
    )


def find(source: Path) -> WeightsOfVmoe:
    """Return the parameters that a checkpoint of V-MoE's holds, checked and not read yet.

    Raises:
        UserError: it is damaged, or the parameters do not fit a V-MoE.
    """
    arrays, ignored = _parameters(read_vmoe(source), source)
    sizes = infer({name: array.shape for name, array in arrays.items()}, source=str(source))
    return WeightsOfVmoe(arrays, sizes, ignored)


def _parameters(stored: StoredArrays, source: Path) -> tuple[dict[str, AnyArray], dict[str, int]]:
    """Return the parameters by name, and the number of other entries by first key.

    A training state holds them under ``params``; a released file holds nothing else.

    Raises:
        UserError: a parameter is no array of floating-point numbers.
    """
    names = [*stored.arrays, *stored.others]
    prefix = _TRAINED if any(name.startswith(_TRAINED) for name in names) else ""
    skipped = [name for name in stored.others if name.startswith(prefix)]
    if skipped:
        raise UserError(f"In {source}, {quote(skipped[0])} is no array, as a parameter should be.")
    arrays = {
        name.removeprefix(prefix): array for name, array in stored.arrays.items() if name.startswith(prefix)
    }
    for name, array in arrays.items():
        if array.dtype not in ("float32", "float16", "bfloat16"):
            raise UserError(
                f"In {source}, {quote(name)} is {array.dtype}; parameters are float32, bfloat16 or float16."
            )
    return arrays, dict(Counter(name.split("/")[0] for name in names if not name.startswith(prefix)))


def _config(sizes: VmoeSizes, settings: UnseenOfVmoe) -> ModelConfig:
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


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
