"""What imports have in common: where and how they are written, the description of the model, and its classes."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ValidationError
from torch import nn

from moeprobe.errors import UserError, already_finished, option
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.models.checkpoints import checkpoint, header
from moeprobe.models.checkpoints.location import LAST
from moeprobe.models.config import ModelConfig
from moeprobe.runtime.files import Scratch, has_same_bytes, is_file, resolve
from moeprobe.runtime.folders import RunFolder, check_replaceable
from moeprobe.runtime.object_stores import check_local
from moeprobe.runtime.records import Family, scan

_DESCRIPTION = "last.json"
# A folder of a checkpoint alone; that of a training holds more, and is none to import into.
_FAMILY = Family(
    "checkpoint",
    patterns=lambda path: (LAST, _DESCRIPTION) if header.is_written_by_moeprobe(path / LAST) else (),
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


def check_folder(folder: Path, source: Path, *, overwrite: bool, read: Path | None = None) -> None:
    """Raise ``UserError`` unless a checkpoint may be put there, or may be there already, of the same source.

    ``read``: the file or folder that is read, where ``source`` is no path.
    """
    check_local(folder)
    contents = scan(folder, _FAMILY)
    if contents.empty:
        return
    if not is_file(folder / LAST):
        raise UserError(f"{folder} is not empty and not a checkpoint folder of moeprobe; choose another one.")
    if not overwrite:
        if _source_of(folder) != str(source):
            raise _another(folder)
        return
    path = resolve(source if read is None else read)
    if resolve(folder) in {path, *path.parents}:
        raise UserError(f"{source} is in {folder}, which would be replaced; choose another one.")
    check_replaceable(folder, contents, _FAMILY)


def _source_of(folder: Path) -> str | None:
    """Return what a checkpoint in a folder was imported from."""
    training = header.read_header(folder / LAST).description.get("training")
    return training.get("source") if isinstance(training, dict) else None


def _another(folder: Path) -> UserError:
    return UserError(
        f"{folder} holds a checkpoint; add {option('overwrite', True)} to replace it, or choose another one."
    )


def save(
    folder: Path,
    model: nn.Module,
    *,
    config: ModelConfig,
    imported: str,
    source: Path,
    class_names: tuple[str, ...],
    overwrite: bool,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write an imported model as a checkpoint folder.

    ``imported`` is the kind of its source, ``origin`` what else is known of where it is from.

    Without ``overwrite`` an existing checkpoint stays, if it is identical.

    Raises:
        UserError: the folder cannot be written, holds another checkpoint, or another process writes to it.
    """

    def write(target: Path) -> None:
        training = {"imported": imported, "source": str(source), **(origin or {})}
        checkpoint.save(target / LAST, model, config=config, training=training, class_names=class_names)

    with RunFolder(folder, _FAMILY) as run_folder:
        if is_file(folder / LAST) and not overwrite:
            scratch = Scratch()
            write(scratch.path)
            if not has_same_bytes(scratch.path / LAST, folder / LAST):
                raise _another(folder)
            # A kill may have left the weights without their description beside them.
            if has_same_bytes(scratch.path / _DESCRIPTION, folder / _DESCRIPTION):
                warnings.warn(already_finished(folder), stacklevel=3)
                return
        write(folder)
        run_folder.check()


def model_config(keys: Mapping[str, Any]) -> ModelConfig:
    """Return the description of a model; what does not fit is named as the option that gave it.

    Raises:
        UserError: a value does not fit.
    """
    try:
        config = ModelConfig(**keys)
    except ValidationError as error:
        problem = error.errors()[0]
        name = option(str(problem["loc"][0]))
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        raise UserError(f"{name}: {message}; got {problem['input']!r}.") from None
    for name in ("capacity_factor", "eval_capacity_factor"):
        factor = getattr(config, name)
        if isinstance(factor, float) and factor <= 0:
            raise UserError(f"{option(name)}: a number above 0 or none is needed; got {factor}.")
    if min(config.std) <= 0:
        raise UserError(f"{option('std')}: numbers above 0 are needed; got {config.std}.")
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
