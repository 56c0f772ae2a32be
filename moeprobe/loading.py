"""Open by name what a probe needs: checkpoints, data sets, views, devices.

Everything named wrongly is a ``UserError`` with one sentence.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeprobe.adapters.base import Opened
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.swin_moe import SwinMoe
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.arguments import several
from moeprobe.catalog import ADAPTERS, SCHEMES, VIEWS, is_foreign
from moeprobe.config import Plugin, make_plugin
from moeprobe.data._files import Files
from moeprobe.data._naming import open_data
from moeprobe.data.base import Dataset, ImageDataset
from moeprobe.errors import UserError
from moeprobe.options import Options, checked
from moeprobe.probes import Checkpoint
from moeprobe.runs import TAKEN
from moeprobe.seeds import random_state_kept
from moeprobe.training import checkpoint as checkpoints
from moeprobe.views._text import TextFraming
from moeprobe.views.base import Framing, PairView, SeverityView

Model = Checkpoint | str | Path
# One of them or several.
Models = Model | Sequence[Model]
# Files are called by a model's name and some more, and most systems allow 255 bytes in all.
_LONGEST_NAME = 200


@checked
@random_state_kept()
def load_model(
    source: str | Path, *, device: str = "auto", trained_capacity: bool = False, group_images: int = 1
) -> Checkpoint:
    """Load a checkpoint, or open a foreign model, for probing.

    Args:
        source: a run folder (its last checkpoint), a ``.safetensors`` file, ``hf:`` and a folder or name of Hugging
            Face's ``transformers``, or ``py:package.module:factory``.
        device: "auto" takes CUDA, then MPS, then the CPU.
        trained_capacity: keep the capacity that the model evaluates with (which may be none), instead of no limit.
        group_images: images that compete for that capacity.

    Raises:
        UserError: it is missing, truncated or foreign, or does not fit what is told of it.
    """
    if is_foreign(source):
        return _open(
            str(source),
            device=choose_device(device),
            trained_capacity=trained_capacity,
            group_images=group_images,
        )
    import moeprobe.nn  # noqa: F401  (registers the models)

    model, info = checkpoints.load(source)
    traceable = (Vmoe if info.model.swin is None else SwinMoe)(
        model,
        mean=info.model.mean,
        std=info.model.std,
        router_name=info.model.router_name,
        trained_capacity=trained_capacity,
        group_images=group_images,
    ).to(choose_device(device))
    return Checkpoint(
        name=info.name,
        model=traceable,
        framing=Framing(traceable.image_size[0], info.model.crop_fraction),
        class_names=info.class_names,
        train_seed=info.training.get("seed"),
        group=info.training.get("group", ""),
        provenance={
            "path": str(info.path),
            "sha256": info.hash,
            "capacity": _capacity(traceable, trained=trained_capacity),
            "group_images": traceable.group_images,
            "training": info.training,
        },
    )


def as_checkpoint(model: Model, **more: Any) -> Checkpoint:
    """Return a checkpoint as it is, or load it; ``more`` as for ``load_model``.

    Raises:
        UserError: it is neither a checkpoint nor the path or name of one.
    """
    if isinstance(model, Checkpoint):
        return model
    if isinstance(model, str | Path):
        return load_model(model, **more)
    if isinstance(model, nn.Module):
        hooks = "api.Hooks(net, image_size=…)"
    elif isinstance(model, Hooks):
        hooks = "hooks"
    else:
        raise UserError(
            f"A checkpoint is a path, or what api.load_model returns; got {type(model).__name__}."
        )
    raise UserError(
        f"A {type(model).__name__} cannot be probed as it is; wrap it: api.wrap({hooks}, name='mine')."
    )


@checked
def wrap(model: Hooks, *, name: str) -> Checkpoint:
    """Return a model of your own, made traceable by ``Hooks``, as what is probed; tables call it ``name``.

    Raises:
        UserError: it is a module without ``Hooks``, or files cannot be called by the name.
    """
    if not isinstance(model, Hooks):
        raise UserError(
            f"A {type(model).__name__} does not say how it is read; say it with Hooks: "
            f"api.wrap(api.Hooks(net, image_size=…), name={name!r})."
        )
    return _checkpoint(model.opened(name))


def _open(source: str, **more: Any) -> Checkpoint:
    """Return another program's model, as its adapter opens it."""
    scheme, _, reference = source.partition(":")
    return _checkpoint(ADAPTERS.get(SCHEMES[scheme]).open(reference, **more))


def _checkpoint(opened: Opened) -> Checkpoint:
    """Return another program's model as what is probed.

    Raises:
        UserError: files cannot be called by its name.
    """
    return Checkpoint(
        name=_file_name(opened.name),
        model=opened.model,
        framing=opened.framing,
        class_names=opened.class_names,
        provenance=opened.provenance,
    )


def _file_name(name: str) -> str:
    """Return a model's name, by which files and folders are called.

    Raises:
        UserError: it is not one ordinary part of a path.
    """
    ordinary = name.isprintable() and name == name.strip() and not set(name) & set("/\\")
    if not name or not ordinary or name.startswith(".") or len(name.encode()) > _LONGEST_NAME:
        raise UserError(
            f"A model cannot be called {name[:80]!r}: files are called by its name, so it must be one ordinary part of "
            f"a path, without '/' or a leading dot, of at most {_LONGEST_NAME} bytes; name it otherwise (name: in its "
            "settings, or its folder)."
        )
    if name.casefold() in TAKEN:
        raise UserError(f"A model cannot be called {name!r}: that is what runs call a file of their own.")
    return name


def _capacity(model: Vmoe, *, trained: bool) -> str:
    """Return the capacity factors that a model is probed with, of all its layers.

    "none" where it has no limit of its own; "unlimited" where ``trained`` False has lifted what limits there may be.
    """
    factors = dict.fromkeys(model.capacity_factors.values())
    if not trained and not any(factors):
        return "unlimited"
    return " and ".join("none" if factor is None else f"{factor:g}" for factor in factors)


@checked
def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; "auto" takes CUDA, then MPS, then the CPU.

    Raises:
        UserError: there is no such device here.
    """
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name == "auto":
        return torch.device(available[0])
    if name.partition(":")[0] not in available:
        raise UserError(f"There is no device {name!r} here; choose auto or one of {', '.join(available)}.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is no device; choose auto or one of {', '.join(available)}.") from None


def open_images(name: str, *, split: str) -> ImageDataset:
    """Open a data set of images by name; see ``open_data``.

    Raises:
        UserError: it holds anything else.
    """
    dataset = open_data(name, split=split)
    if not isinstance(dataset, ImageDataset):
        raise UserError(f"Images are needed here, and {name} holds {dataset.medium.plural}.")
    return dataset


def pick_images(
    dataset: Dataset | None, *, images: Sequence[str], files: Sequence[str | Path], data: str
) -> tuple[Dataset, list[int] | None, str]:
    """Return the data set of what a user named, the images' numbers in it (None: none was named), and its name.

    Args:
        dataset: that of ``images``; not needed for files.
        images: names of images of the data set.
        files: image files of the user's own, which go first.
        data: what the data set is called.

    Raises:
        UserError: an image is named twice, or does not exist.
    """
    for name, number in Counter([*images, *files]).items():
        if number > 1:
            raise UserError(f"The image {str(name)!r} is named twice.")
    if files:
        return Files(files), list(range(len(files))), "files"
    assert dataset is not None
    return dataset, [_find_image(dataset, name, data=data) for name in images] or None, data


def _find_image(dataset: Dataset, name: str, *, data: str) -> int:
    names = list(dataset.image_ids)
    if name not in names:
        example = f" {names[0]}" if names else " nothing: it is empty"
        raise UserError(f"There is no image {name!r} in {data}; names look like{example}.")
    return names.index(name)


def open_view(name: str, *, dataset: Dataset | None = None, **parameters: Any) -> PairView | SeverityView:
    """Make a view by name, or ``name:location`` where it needs a file.

    On data that must not be mirrored (digits) a view that flips is made not to.

    Raises:
        UserError: there is no such view, or it does not take these parameters.
    """
    name, _, location = name.partition(":")
    kind = VIEWS.get(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    if bool(location) != ("location" in fields):
        raise UserError(
            f"The view {name!r} takes no file; leave :{location} away."
            if location
            else f"The view {name!r} needs a file: write {name}:PATH."
        )
    if location:
        parameters["location"] = location
    if dataset is not None and not dataset.flippable and "flip" in fields:
        parameters["flip"] = False
    return make_plugin(kind, Plugin(name=name, **parameters), what="view")


def load_models(models: Models, options: Options) -> list[Checkpoint]:
    """Load the checkpoints that are not loaded yet, and check that the tables can tell them apart.

    Raises:
        UserError: there is none, something is no checkpoint, or two have one name.
    """
    given = several(models)
    if not given:
        raise UserError("Name at least one checkpoint.")
    loaded = [
        as_checkpoint(
            model,
            device=options.device,
            trained_capacity=options.trained_capacity,
            group_images=options.group_images,
        )
        for model in given
    ]
    loaded = _cut(loaded, options.max_length)
    names = [model.name for model in loaded]
    if len(set(names)) < len(names):
        paths = [_place(model) for model in loaded]
        if len(set(paths)) < len(paths):
            raise UserError("The same checkpoint was named twice.")
        depth = 2
        while len({path.parts[-depth:] for path in paths}) < len(paths):
            depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
        loaded = [dataclasses.replace(model, name=name) for model, name in zip(loaded, names, strict=True)]
    return loaded


def _place(model: Checkpoint) -> Path:
    """Return where a model is from, without its suffix.

    The files of one folder (best and last) are told apart by their own names, folders by those they lie in, and modules
    with the same settings by what makes them.
    """
    path = Path(model.provenance.get("path", model.name)).resolve().with_suffix("")
    return path / model.provenance.get("factory", "").replace(":", ".")


def _cut(models: Sequence[Checkpoint], max_length: int | None) -> list[Checkpoint]:
    """Return checkpoints that cut texts off at one length, None = the least of their own; images are no matter.

    Raises:
        UserError: one reads no texts, or not so many tokens, or there would be nothing left of them.
    """
    if max_length is None:
        lengths = [model.framing.max_length for model in models if isinstance(model.framing, TextFraming)]
        return [_cut_one(model, min(lengths)) if lengths else model for model in models]
    return [_cut_one(model, max_length, told=True) for model in models]


def _cut_one(model: Checkpoint, max_length: int, *, told: bool = False) -> Checkpoint:
    framing = model.framing
    if not isinstance(framing, TextFraming):
        if told:
            raise UserError(f"--max-length is about texts, and {model.name} reads images.")
        return model
    shortest = framing.blank().ids.shape[1]
    if max_length < shortest:
        raise UserError(f"--max-length for {model.name} is at least {shortest}; got {max_length}.")
    if framing.longest is not None and max_length > framing.longest:
        raise UserError(f"--max-length for {model.name} is at most {framing.longest}; got {max_length}.")
    return dataclasses.replace(model, framing=dataclasses.replace(framing, max_length=max_length))
