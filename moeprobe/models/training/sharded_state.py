"""The state of a run in parts: each process writes its own; any number of processes can continue.

``state.safetensors`` has the description and the running sums, as ever, and names the folder of the parts,
``state/STEP/``, which is whole before it is named: a run that is killed while it writes continues from the state
before.
"""

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.training.layouts import Layout
from moeprobe.models.training.state import (
    Averages,
    load_state,
    of_optimizer,
    read_state,
    save_state,
    write_state,
)
from moeprobe.runtime.files import is_file, remove
from moeprobe.runtime.removal import remove_files

_FOLDER = "state"


def save(
    path: Path,
    layout: Layout,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Averages,
    description: dict[str, Any],
) -> None:
    """Write a run's state, as its layout wants it; all processes call this at the same time."""
    if not layout.sharded:
        if layout.ranks.rank == 0:
            save_state(path, model, optimizer, averages, description)
            remove_parts(path.parent)
        return
    from moeprobe.runtime.distributed import sharded

    subfolder = f"{_FOLDER}/{description['step']}"
    first = layout.ranks.rank == 0
    if first:
        remove_parts(path.parent, but=_parts_folder(path))
    if layout.ranks.exchange(first and _parts_folder(path) == subfolder)[0]:
        return  # of this step already
    tensors, plain = of_optimizer(optimizer)
    names = _names(model, optimizer)
    wholes = {f"model/{name}": tensor for name, tensor in layout.full_tensors(model.state_dict()).items()}
    for name, tensor in tensors.items():
        owner = names.get(name.rpartition("/")[0])
        has_shape = owner is not None and tensor.shape == model.get_parameter(owner).shape
        wholes[name] = (
            layout.full_tensors({owner: tensor})[owner] if owner is not None and has_shape else tensor
        )
    sharded.write(wholes, path.parent / subfolder, layout.ranks)
    layout.ranks.exchange("written")
    if first:
        write_state(path, {}, averages, plain, {"parts": subfolder} | description)
        remove_parts(path.parent, but=subfolder)


def load(
    path: Path, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer, *, device: torch.device
) -> tuple[Averages, dict[str, Any]]:
    """Put a saved state, of whatever layout, into ``model`` and ``optimizer``; return what ``load_state`` does.

    Raises:
        UserError: it is missing or damaged, or of another model or optimizer.
    """
    reader = partial(_read, layout=layout, model=model, optimizer=optimizer)
    return load_state(path, model, optimizer, read=reader, device=device)


def _read(
    path: Path, *, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what this process wants of a state."""
    tensors, description = read_state(path)
    subfolder = description.get("parts")
    if subfolder is None and not layout.sharded:
        return tensors, description
    from moeprobe.runtime.distributed import sharded

    if subfolder is not None and not re.fullmatch(rf"{_FOLDER}/\d+", str(subfolder)):
        raise UserError(f"{path} names {subfolder!r} as the folder of its parts, which is none of a run.")
    saved = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if subfolder is None
        else sharded.shapes(path.parent / subfolder)
    )
    empty = _empty_tensors(saved, layout, model, optimizer)
    if subfolder is None:
        parts = {name: sharded.part_like(tensors[name], template) for name, template in empty.items()}
    else:
        parts = empty
        sharded.read(parts, path.parent / subfolder, layout.ranks)
    return tensors | {name: layout.part(tensor) for name, tensor in parts.items()}, description


def _empty_tensors(
    saved: dict[str, tuple[torch.Size, torch.dtype]],
    layout: Layout,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Tensor]:
    """Return an empty tensor for each that was saved, laid out as here; running sums are as they are."""
    wholes = layout.full_tensors(model.state_dict())
    names = _names(model, optimizer)
    empty = {}
    for name, (shape, kind) in saved.items():
        part, _, subname = name.partition("/")
        owner = subname if part == "model" else names.get(name.rpartition("/")[0])
        like = wholes.get(owner or "")
        if part == "averages":
            continue
        if like is not None and like.shape == shape:
            empty[name] = torch.empty_like(like, dtype=kind)
        else:
            empty[name] = torch.empty(shape, dtype=kind)
    return empty


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the parameter by what the optimizer calls it: ``optimizer/NUMBER``."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {f"optimizer/{number}": name_of[id(parameter)] for number, parameter in enumerate(parameters)}


def _parts_folder(path: Path) -> str | None:
    """Return the folder that a state names, if there is a state."""
    return read_state(path)[1].get("parts") if is_file(path) else None


def discard(folder: Path) -> None:
    """Try to remove the state of a finished run; the next process to find the run removes the remainder."""
    with suppress(UserError, OSError):
        remove(folder / "state.safetensors")
        remove_parts(folder)


def remove_parts(folder: Path, *, but: str | None = None) -> None:
    """Remove the parts of states from a run's folder, but those in one."""
    parts = [path.relative_to(folder).as_posix() for path in folder.glob(f"{_FOLDER}/*/*.safetensors")]
    remove_files(folder, [part for part in parts if not part.startswith(f"{but}/")])
