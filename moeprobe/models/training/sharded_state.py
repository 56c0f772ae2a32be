"""The state of a run whose processes hold parts of it: each writes its own, any number of them goes on.

``state.safetensors`` has the description and the running sums, as ever, and names the folder of the parts,
``state/STEP/``, which is whole before it is named: a run that is killed while it writes goes on from the state before.
"""

import re
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

    place = f"{_FOLDER}/{description['step']}"
    first = layout.ranks.rank == 0
    if first:
        remove_parts(path.parent, but=_named(path))
    if layout.ranks.exchange(first and _named(path) == place)[0]:
        return  # of this step already
    tensors, plain = of_optimizer(optimizer)
    names = _names(model, optimizer)
    wholes = {f"model/{name}": one for name, one in layout.whole(model.state_dict()).items()}
    for name, one in tensors.items():
        owner = names.get(name.rpartition("/")[0])
        alike = owner is not None and one.shape == model.get_parameter(owner).shape
        wholes[name] = layout.whole({owner: one})[owner] if owner is not None and alike else one
    sharded.write(wholes, path.parent / place, layout.ranks)
    layout.ranks.exchange("written")
    if first:
        write_state(path, {}, averages, plain, {"parts": place} | description)
        remove_parts(path.parent, but=place)


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
    place = description.get("parts")
    if place is None and not layout.sharded:
        return tensors, description
    from moeprobe.runtime.distributed import sharded

    if place is not None and not re.fullmatch(rf"{_FOLDER}/\d+", str(place)):
        raise UserError(f"{path} names {place!r} as the folder of its parts, which is none of a run.")
    known = (
        {name: (one.shape, one.dtype) for name, one in tensors.items()}
        if place is None
        else sharded.shapes(path.parent / place)
    )
    wanted = _wanted(known, layout, model, optimizer)
    if place is None:
        parts = {name: sharded.part_like(tensors[name], one) for name, one in wanted.items()}
    else:
        parts = wanted
        sharded.read(parts, path.parent / place, layout.ranks)
    return tensors | {name: layout.part(one) for name, one in parts.items()}, description


def _wanted(
    known: dict[str, tuple[torch.Size, torch.dtype]],
    layout: Layout,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Tensor]:
    """Return an empty tensor for each that was saved, laid out as here; running sums are as they are."""
    wholes = layout.whole(model.state_dict())
    names = _names(model, optimizer)
    wanted = {}
    for name, (shape, kind) in known.items():
        part, _, rest = name.partition("/")
        owner = rest if part == "model" else names.get(name.rpartition("/")[0])
        like = wholes.get(owner or "")
        if part == "averages":
            continue
        if like is not None and like.shape == shape:
            wanted[name] = torch.empty_like(like, dtype=kind)
        else:
            wanted[name] = torch.empty(shape, dtype=kind)
    return wanted


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the parameter by what the optimizer calls it: ``optimizer/NUMBER``."""
    named = {id(one): name for name, one in model.named_parameters()}
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return {f"optimizer/{number}": named[id(one)] for number, one in enumerate(parameters)}


def _named(path: Path) -> str | None:
    """Return the folder that a state names, if there is a state."""
    return read_state(path)[1].get("parts") if path.is_file() else None


def remove_parts(folder: Path, *, but: str | None = None) -> None:
    """Remove the parts of states from a run's folder, but those in one."""
    parts = [one.relative_to(folder).as_posix() for one in folder.glob(f"{_FOLDER}/*/*.safetensors")]
    remove_files(folder, [one for one in parts if not one.startswith(f"{but}/")])
