"""The data that checkpoints were trained on: the default of probes, and warnings about other data."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.data.readers.naming import Files, resolve_name
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.runtime.files import is_folder, resolve, status

# A training writes to checkpoints/NAME, a sweep to checkpoints/SWEEP/CELL: it ran so many folders above.
_MOST_ABOVE = 3
# Splits that hold what a training takes.
_TRAINED_ON = ("train", "all")
# Where a location stops being an ordinary path and starts to be a pattern of shards.
_WILD = "*?[{"


@dataclass(frozen=True)
class Origin:
    """The training of a checkpoint.

    Attributes:
        name: what the tables call it.
        data: what it was trained on, as the training was given it; None if it does not say.
        folder: folder of the checkpoint; None if unknown.
        modality: what it reads.
    """

    name: str
    data: str | None
    folder: Path | None
    modality: Modality = IMAGE


def origin_of(model: Checkpoint) -> Origin:
    """Return what a loaded checkpoint records of its training."""
    return make_origin(model.name, model.provenance, modality=model.framing.modality)


def make_origin(name: str, provenance: Mapping[str, Any], *, modality: Modality = IMAGE) -> Origin:
    """Return the origin in a checkpoint's provenance, as a sidecar has it."""
    path = provenance.get("path")
    return Origin(
        name,
        provenance.get("training", {}).get("data"),
        None if path is None else Path(path).parent,
        modality,
    )


def choose_data(data: str | None, models: Sequence[Checkpoint], *, files: Sequence[str | Path] = ()) -> str:
    """Return the data set to probe on: the one that is named, or the one that all the checkpoints were trained on.

    Args:
        data: what the user named, None = nothing.
        models: the checkpoints.
        files: image files of the user's own, which take the place of data.

    Raises:
        UserError: none is named, and a checkpoint does not say what it was trained on, or the checkpoints were trained
            on different data, or the data are not where they were.
    """
    return data_of([origin_of(model) for model in models], data, files=files)


def data_of(origins: Sequence[Origin], data: str | None, *, files: Sequence[str | Path] = ()) -> str:
    """Return what ``choose_data`` does, for checkpoints that need not be loaded."""
    if data is not None and files:
        raise UserError(
            f"Files of your own belong to no data set: omit {option('data', data)}, or give {option('images')} for "
            f"{option('files', flag='--file')}."
        )
    if data is not None:
        return data
    if files:
        # A placeholder where a data set is required; nothing of it is read.
        return "digits"
    if not origins:
        raise UserError(f"Name the data, e.g. {option('data', 'digits')} or {option('data', 'folder:PATH')}.")
    for origin in origins:
        if origin.data is None:
            examples = ("imagenet:PATH", "folder:PATH") if origin.modality is IMAGE else ("text:PATH",)
            raise UserError(
                f"{origin.name} does not say what it was trained on; name the data, e.g. "
                f"{' or '.join(option('data', example) for example in examples)}."
            )
    trained_on = {origin.name: find(origin) for origin in origins}
    first, *other_names = trained_on
    for name in other_names:
        if not _same(trained_on[first], trained_on[name]):
            raise UserError(
                f"{first} was trained on {trained_on[first]} and {name} on {trained_on[name]}; name the data to "
                f"probe both on, e.g. {option('data', trained_on[first])}."
            )
    return trained_on[first]


def modality_of_data(data: str | None, *, files: Sequence[str | Path] = ()) -> Modality | None:
    """Return what data hold, which are named, or image files; None where neither is named."""
    if files:
        return IMAGE
    return None if data is None else resolve_name(data)[0].modality


def find(origin: Origin) -> str:
    """Return the data that a checkpoint was trained on, as they are called from the current folder.

    A relative path is looked for in the current folder, then in the checkpoint's and in those above, where the training
    ran.

    Raises:
        UserError: the path is nowhere.
    """
    # "imagenet:PATH" has a kind and a location; "digits" has a kind alone.
    assert origin.data is not None
    kind, _, location = origin.data.partition(":")
    if not location or not _is_path(kind):
        return origin.data
    if _exists(Path(location).expanduser()):
        return origin.data
    # The training ran in another folder, from which the path was relative.
    if origin.folder is not None and not Path(location).is_absolute():
        start = resolve(origin.folder)
        for root in (start, *start.parents[:_MOST_ABOVE]):
            if _exists(root / location):
                return f"{kind}:{_relative(root / location)}"
    if kind in ("huggingface", "huggingface_stream"):
        return origin.data  # a name on the hub
    raise UserError(
        f"{origin.name} was trained on {origin.data}, which was not found; name the data, e.g. "
        f"{option('data', f'{kind}:PATH')}."
    )


def doubts(models: Sequence[Checkpoint], dataset: Dataset, data: str, *, split: str) -> dict[str, str]:
    """Return warnings about checkpoints on other data than they were trained on, or on their training images.

    The training images are the split ``train``, which is in ``all`` too. A checkpoint that says
    neither its data nor its classes is not doubted, nor are image files of the user's own.
    """
    warnings: dict[str, str] = {}
    # Files of the user's own are nobody's training data.
    if isinstance(dataset, Files):
        return warnings
    for model in models:
        origin = origin_of(model)
        differs = origin.data is not None and not is_trained_on(origin, data)
        comparable = model.class_names and dataset.class_names is not None
        classes_differ = bool(comparable) and model.class_names != dataset.class_names
        if differs and classes_differ:
            warnings[model.name] = (
                f"was trained on {origin.data} and is probed on {data}, whose classes are others."
            )
        elif differs:
            warnings[model.name] = f"was trained on {origin.data} and is probed on {data}."
        elif classes_differ:
            warnings[model.name] = f"has other classes than {data}."
        elif split in _TRAINED_ON and is_trained_on(origin, data):
            warnings[model.name] = (
                f"is probed on the split {split!r}, which holds images that it was trained on."
            )
    return warnings


def describe_origins(
    models: Sequence[Checkpoint], dataset: Dataset, data: str, *, split: str
) -> dict[str, dict[str, Any]]:
    """Return where checkpoints are from, for a sidecar; with a ``warning`` where ``doubts`` has one."""
    warnings = doubts(models, dataset, data, split=split)
    return {
        model.name: dict(model.provenance)
        | ({"warning": warnings[model.name]} if model.name in warnings else {})
        for model in models
    }


def same_as_training(sidecar: Mapping[str, Any]) -> bool:
    """Whether a run was on the data that each of its checkpoints was trained on, by its sidecar."""
    data = sidecar["request"]["data"]
    return all(
        is_trained_on(make_origin(name, provenance), data)
        for name, provenance in sidecar["checkpoints"].items()
    )


def is_trained_on(origin: Origin, data: str) -> bool:
    """Whether a checkpoint was trained on these data, as they are called from the current folder."""
    if origin.data is None:
        return False
    # Data that have moved are compared by what they were called.
    try:
        trained_on = find(origin)
    except UserError:
        trained_on = origin.data
    return _same(trained_on, data)


def _is_path(kind: str) -> bool:
    """Whether the text after the colon is a path; for ``shapes`` it is a resolution."""
    return kind != "shapes"


def _exists(path: Path) -> bool:
    """Whether a path is there; of a pattern the folder that it begins in."""
    text = str(path)
    wild = [text.index(sign) for sign in _WILD if sign in text]
    return status(path) is not None if not wild else is_folder(Path(text[: min(wild)]).parent)


def _same(first: str, second: str) -> bool:
    return first == second or _resolve(first) == _resolve(second)


def _resolve(data: str) -> tuple[str, str]:
    """Return the kind and an absolute location, so that two ways to call one folder are one."""
    kind, _, location = data.partition(":")
    path = Path(location).expanduser()
    return kind, str(resolve(path)) if location and _is_path(kind) and status(path) is not None else location


def _relative(path: Path) -> str:
    """Return a path relative to the current folder if it is inside, else the whole."""
    working = Path.cwd()
    return os.path.relpath(path, working) if path.is_relative_to(working) else str(path)
