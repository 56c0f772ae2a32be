"""What imports have in common: where and how they are written, the description of the model, and its classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError
from torch import nn

from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.models.checkpoints import checkpoint, header
from moeprobe.models.config import ModelConfig
from moeprobe.runtime.files import LAST
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.records import Family, look
from moeprobe.runtime.replacing import check_replaceable

# A folder of a checkpoint alone; that of a training holds more, and is none to import into.
_FAMILY = Family(
    "checkpoint",
    is_ours=lambda path: header.is_written_by_moeprobe(path / LAST),
    known=(LAST, "last.json"),
)


class Unseen(TypedDict, total=False):
    """Keys of ``ModelConfig`` that leave no trace in parameters."""

    top_k: int
    capacity_factor: float | str
    eval_capacity_factor: float | str
    group_images: int
    batch_priority: bool
    mean: Sequence[float]
    std: Sequence[float]
    crop_fraction: float | None


def check_folder(folder: Path, source: Path, *, overwrite: bool) -> None:
    """Raise ``UserError`` unless a checkpoint may be put there."""
    contents = look(folder, _FAMILY)
    if contents.empty:
        return
    if not (folder / LAST).is_file():
        raise UserError(f"{folder} is not empty and not a checkpoint folder of moeprobe; choose another one.")
    if not overwrite:
        raise UserError(f"{folder} holds a checkpoint; add --overwrite to replace it, or choose another one.")
    if folder.resolve() in source.resolve().parents:
        raise UserError(f"{source} is in {folder}, which would be replaced; choose another one.")
    check_replaceable(folder, contents, _FAMILY)


def save(
    folder: Path,
    model: nn.Module,
    *,
    config: ModelConfig,
    imported: str,
    source: Path,
    class_names: tuple[str, ...],
) -> None:
    """Write an imported model as a checkpoint folder; ``imported`` is the kind of its source.

    Raises:
        UserError: the folder cannot be written, or another process writes to it.
    """
    with RunFolder(folder, _FAMILY) as own:
        checkpoint.save(
            folder / LAST,
            model,
            config=config,
            training={"imported": imported, "source": str(source)},
            class_names=class_names,
        )
        own.check()


def model_config(keys: Mapping[str, Any]) -> ModelConfig:
    """Return the description of a model; what does not fit is named as the option that gave it.

    Raises:
        UserError: a value does not fit.
    """
    try:
        config = ModelConfig(**keys)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        raise UserError(f"--{option}: {message}; got {problem['input']!r}.") from None
    for option, factor in (
        ("--capacity-factor", config.capacity_factor),
        ("--eval-capacity-factor", config.eval_capacity_factor),
    ):
        if isinstance(factor, float) and factor <= 0:
            raise UserError(f"{option}: a number above 0 or none is needed; got {factor}.")
    if min(config.std) <= 0:
        raise UserError(f"--std: numbers above 0 are needed; got {config.std}.")
    return config


def class_names(data: str, num_classes: int) -> tuple[str, ...]:
    """Return the class names of a data set.

    Raises:
        UserError: there is no such data set, or its classes are not as many as the model's.
    """
    names = open_data(data).class_names
    if names is None or len(names) != num_classes:
        number = "no classes" if names is None else f"{len(names):,} classes"
        raise UserError(f"The scores are about {num_classes:,} classes, and {data} has {number}.")
    return names
