"""The data to continue an unfinished run exactly: parameters, optimizer, and running sums of reported values.

Where several processes share a state, each writes its own part; any number of processes can continue.
``state.safetensors`` has the description and the running sums, as ever, and names the folder of the parts,
``state/STEP/``, which is whole before it is named: a run that is killed while it writes continues from the state
before.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import read_tensors, write_tensors
from moeprobe.models.checkpoints.location import STATE
from moeprobe.models.training.parallel.layouts import ProcessLayout
from moeprobe.runtime.files import is_file, remove
from moeprobe.runtime.folders import remove_files

_FORMAT = "moeprobe-state-2"
_FOLDER = "state"


@dataclass
class Averages:
    """Means of the reported values since the last evaluation."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0

    def add(self, values: dict[str, Tensor]) -> None:
        """Add the values of one step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, torch.zeros((), device=value.device)) + value
        self.count += 1

    def means(self) -> dict[str, float]:
        """Return the means; nothing before the first step."""
        return {name: float(value) / self.count for name, value in self.sums.items()}


def write_state(
    path: Path,
    tensors: dict[str, Tensor],
    averages: Averages,
    plain: dict[str, Any],
    description: dict[str, Any],
) -> None:
    """Write tensors and the running sums with what the optimizer keeps ``plain``, and a description."""
    tensors = tensors | {f"averages/{name}": tensor for name, tensor in averages.sums.items()}
    # The file sorts its tensors; the order of the names is the order of the columns of metrics.csv.
    averaged = {"count": averages.count, "names": list(averages.sums)}
    metadata = {"format": _FORMAT, "averaged": averaged, "optimizer": plain}
    write_tensors(path, tensors, metadata | description)


def of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that an optimizer keeps, and what else it does: by kind, number and name."""
    tensors: dict[str, Tensor] = {}
    plain = {}
    for part, content in _parts(optimizer.state_dict()).items():
        plain[part] = {str(index): _without_tensors(entry) for index, entry in content.items()}
        for index, entry in content.items():
            tensors |= {f"{part}/{index}/{key}": v for key, v in entry.items() if isinstance(v, Tensor)}
    return tensors, plain


def _parts(content: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return what an optimizer keeps per parameter, and per group of parameters (a count of steps, say)."""
    return {"optimizer": content["state"], "groups": dict(enumerate(content["param_groups"]))}


def _without_tensors(entry: dict[str, Any]) -> dict[str, Any]:
    # ``params`` numbers the parameters; ``load`` takes it from the optimizer at hand.
    return {key: value for key, value in entry.items() if key != "params" and not isinstance(value, Tensor)}


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a state's file, and its description.

    Raises:
        UserError: it is damaged, or no such file.
    """
    tensors, description = read_tensors(path)
    if description.get("format") != _FORMAT:
        raise UserError(f"{path} is not the state of a run in a format that this version reads ({_FORMAT}).")
    return tensors, description


def save(
    path: Path,
    layout: ProcessLayout,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Averages,
    description: dict[str, Any],
) -> None:
    """Write a run's state, as its layout wants it; all processes call this at the same time."""
    if not layout.sharded:
        if layout.ranks.rank == 0:
            tensors, plain = of_optimizer(optimizer)
            tensors |= {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
            write_state(path, tensors, averages, plain, description)
            # Only now: until the new state is complete, an earlier one with parts is still valid.
            remove_parts(path.parent)
        return
    from moeprobe.models.training.parallel import sharded

    subfolder = f"{_FOLDER}/{description['step']}"
    first = layout.ranks.rank == 0
    if first:
        remove_parts(path.parent, but=_parts_folder(path))
    # All processes decide alike, by what the first one sees.
    if layout.ranks.exchange(first and _parts_folder(path) == subfolder)[0]:
        return  # of this step already
    tensors, plain = of_optimizer(optimizer)
    names = _names(model, optimizer)
    wholes = {f"model/{name}": tensor for name, tensor in layout.full_tensors(model.state_dict()).items()}
    for name, tensor in tensors.items():
        owner = names.get(name.rpartition("/")[0])
        # Moments have their parameter's shape and are sharded like it; a step count is a scalar.
        has_shape = owner is not None and tensor.shape == model.get_parameter(owner).shape
        wholes[name] = (
            layout.full_tensors({owner: tensor})[owner] if owner is not None and has_shape else tensor
        )
    sharded.write(wholes, path.parent / subfolder, layout.ranks)
    # All parts are complete before the state names their folder.
    layout.ranks.exchange("written")
    if first:
        write_state(path, {}, averages, plain, {"parts": subfolder} | description)
        remove_parts(path.parent, but=subfolder)


def load(
    path: Path,
    layout: ProcessLayout,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    device: torch.device,
) -> tuple[Averages, dict[str, Any]]:
    """Put a saved state, of whatever layout, into ``model`` and ``optimizer``.

    Args:
        path: the state.
        layout: of which this process may want parts alone.
        model: gets its parameters.
        optimizer: gets what it kept.
        device: where the running sums are wanted.

    Returns:
        The running sums, and the description.

    Raises:
        UserError: the file is missing or damaged, or of another model or optimizer.
    """
    if not is_file(path):
        raise UserError(f"There is nothing to resume: no {path}.")
    tensors, description = _read(path, layout, model, optimizer)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "averages": {}, "optimizer": {}, "groups": {}}
    for name, tensor in tensors.items():
        part, _, tensor_name = name.partition("/")
        parts[part][tensor_name] = tensor
    state = optimizer.state_dict()
    # The fresh optimizer has moments of zeros, which must not survive where the state has none.
    state["state"] = {}
    for part, content in _parts(state).items():
        for index, plain in description["optimizer"][part].items():
            # Whether in one pass is how it is computed here, not what was reached.
            values = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in plain.items()
                if key != "fused"
            }
            content.setdefault(int(index), {}).update(values)
        for name, tensor in parts[part].items():
            index, _, key = name.partition("/")
            content.setdefault(int(index), {})[key] = tensor
    try:
        model.load_state_dict(parts["model"])
        optimizer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{path} is the state of another run ({' '.join(str(error).split())}).") from None
    averaged = description["averaged"]
    sums = {name: parts["averages"][name].to(device) for name in averaged["names"]}
    return Averages(sums, averaged["count"]), description


def _read(
    path: Path, layout: ProcessLayout, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what this process wants of a state."""
    tensors, description = read_state(path)
    subfolder = description.get("parts")
    if subfolder is None and not layout.sharded:
        return tensors, description
    from moeprobe.models.training.parallel import sharded

    if subfolder is not None and not re.fullmatch(rf"{_FOLDER}/\d+", str(subfolder)):
        raise UserError(f"{path} names {subfolder!r} as the folder of its parts, which is none of a run.")
    saved = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if subfolder is None
        else sharded.shapes(path.parent / subfolder)
    )
    empty = _empty_tensors(saved, layout, model, optimizer)
    # A state of one process is cut into parts here; a state in parts is read into them.
    if subfolder is None:
        parts = {name: sharded.part_like(tensors[name], template) for name, template in empty.items()}
    else:
        parts = empty
        sharded.read(parts, path.parent / subfolder, layout.ranks)
    return tensors | {name: layout.part(tensor) for name, tensor in parts.items()}, description


def _empty_tensors(
    saved: dict[str, tuple[torch.Size, torch.dtype]],
    layout: ProcessLayout,
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
        remove(folder / STATE)
        remove_parts(folder)


def remove_parts(folder: Path, *, but: str | None = None) -> None:
    """Remove the parts of states from a run's folder, but those in one."""
    parts = [path.relative_to(folder).as_posix() for path in folder.glob(f"{_FOLDER}/*/*.safetensors")]
    remove_files(folder, [part for part in parts if not part.startswith(f"{but}/")])
