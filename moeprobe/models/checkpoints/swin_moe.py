"""Swin-MoE's checkpoints into moeprobe's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.importing import Unseen, check_folder, class_names, model_config, save
from moeprobe.models.checkpoints.swin_moe_files import RankParameters, find_files, read_ranks
from moeprobe.models.checkpoints.swin_moe_names import SwinMoeSizes, infer, to_state_dict
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.swin import build_swin
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Progress, progress_of

# What leaves no trace in the parameters: Swin-MoE's own values, but that nothing is dropped unless somebody says so.
_UNSEEN = {
    "top_k": 1, "noise_std": 1.0, "capacity_factor": 1.25, "eval_capacity_factor": "none",
    "capacity_rounding": "tutel", "capacity_multiple_of": 1, "group_images": 8, "batch_priority": True,
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
}  # fmt: skip


@dataclass(frozen=True)
class ImportedSwinMoe:
    """What was imported.

    Attributes:
        folder: its run folder.
        files: the files read.
        ranks: files that hold experts.
        sizes: derived from the parameters.
        model: the whole description; anything not among the sizes was given, or is a default.
        parameters: their number.
        classes: data set whose classes the scores are about, None where nobody said.
    """

    folder: Path
    files: tuple[Path, ...]
    ranks: int
    sizes: SwinMoeSizes
    model: ModelConfig
    parameters: int
    classes: str | None


@checked
def import_swin_moe(
    source: str | Path,
    folder: str | Path,
    *,
    image_size: int | None = None,
    renormalise: bool = False,
    classes: str | None = None,
    overwrite: bool = False,
    watcher: Progress | None = None,
    **settings: Unpack[Unseen],
) -> ImportedSwinMoe:
    """Convert a Swin-MoE checkpoint, with one file per rank, to one of moeprobe.

    Args:
        source: PREFIX of the files ``PREFIX.rank0`` …, or any of them.
        folder: of the new checkpoint, written whole or not at all.
        image_size: resolution in pixels, where no attention mask in the files tells it.
        renormalise: a token's weights are divided by their sum over its experts (NORMALIZE_GATE).
        classes: data set, ``name`` or ``name:location``, whose classes the scores are about; None = unknown, and
            then nothing is said of accuracy.
        overwrite: replace a checkpoint that is there.
        watcher: shows the files read.
        settings: keys of ``ModelConfig`` that leave no trace in the parameters: ``top_k``, ``capacity_factor``,
            ``eval_capacity_factor``, ``group_images``, ``batch_priority``, ``mean``, ``std``, ``crop_fraction``.

    Raises:
        UserError: a file is missing, damaged, of another checkpoint or no Swin-MoE's, a setting does not fit, or the
            folder holds something else.
    """
    source, folder, watcher = Path(source), Path(folder), progress_of(watcher)
    check_folder(folder, source, overwrite=overwrite)
    files, master = find_files(source)
    watcher.start(f"import {source.name}", len(files) + (master is not None))
    ranks = read_ranks(source, lambda: watcher.advance(1))
    sizes = infer(ranks, source=str(source), image_size=image_size)
    config = _config(sizes, settings, renormalise=renormalise)
    names = () if classes is None else class_names(classes, sizes.num_classes)
    model = _filled(config, ranks, sizes, source=str(source))
    save(
        folder,
        model,
        config=config,
        imported="swin-moe",
        source=source,
        class_names=names,
        overwrite=overwrite,
    )
    return ImportedSwinMoe(
        folder=folder,
        files=ranks.files,
        ranks=ranks.number,
        sizes=sizes,
        model=config,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        classes=classes,
    )


def _config(sizes: SwinMoeSizes, settings: Unseen, *, renormalise: bool) -> ModelConfig:
    router: dict[str, Any] = {"name": sizes.router, "renormalise": renormalise}
    if sizes.projection_width is not None:
        router["projection_width"] = sizes.projection_width
    return model_config(
        {
            "name": "swin_moe",
            "swin": {
                "depths": list(sizes.depths),
                "num_heads": list(sizes.num_heads),
                "windows": list(sizes.windows),
                "patch_norm": sizes.patch_norm,
                "qkv_bias": sizes.qkv_bias,
            },
            "image_size": sizes.image_size,
            "patch_size": sizes.patch_size,
            "width": sizes.width,
            "hidden_width": sizes.hidden_width,
            "num_classes": sizes.num_classes,
            "num_experts": sizes.num_experts,
            "layers": list(sizes.layers),
            "router": router,
        }
        | _UNSEEN
        | settings
    )


def _filled(
    config: ModelConfig, ranks: RankParameters, sizes: SwinMoeSizes, *, source: str
) -> torch.nn.Module:
    """Return the model with its parameters; each of them has its place, and each place one of them.

    Raises:
        UserError: a parameter is missing, not known, or of a shape that does not fit the others.
    """
    with torch.device("meta"):
        model = build_swin(config)
    model_state = model.state_dict()
    state = to_state_dict(ranks, sizes, source=source)
    unknown = [quoted(name) for name in state if name not in model_state]
    if unknown:
        remainder = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UserError(
            f"{source} holds parameters that a Swin-MoE does not have here: {', '.join(unknown[:3])}{remainder}."
        )
    for name, parameter in model_state.items():
        if name not in state:
            raise UserError(f"{source} lacks the parameter that is called {quoted(name)} here.")
        _check(name, state[name], parameter, source)
    model.load_state_dict(state, assign=True)
    return model


def _check(name: str, tensor: Tensor, parameter: Tensor, source: str) -> None:
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UserError(
            f"In {source}, {quoted(name)} is {tensor.dtype}; parameters are float32, bfloat16 or float16."
        )
    if tensor.shape != parameter.shape:
        raise UserError(
            f"{source} does not fit together: {quoted(name)} is {tuple(tensor.shape)}, but by the others it should "
            f"be {tuple(parameter.shape)}."
        )
