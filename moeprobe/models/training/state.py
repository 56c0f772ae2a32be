"""The data to continue an unfinished run exactly: parameters, optimizer, and running sums of reported values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import read_tensors, write_tensors
from moeprobe.runtime.files import is_file

_FORMAT = "moeprobe-state-2"
# From a path to tensors and a description.
Reader = Callable[[Path], tuple[dict[str, Tensor], dict[str, Any]]]


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


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Averages,
    description: dict[str, Any],
) -> None:
    """Write a run's state, whole or not at all; ``description`` is any JSON."""
    tensors, plain = of_optimizer(optimizer)
    tensors |= {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    write_state(path, tensors, averages, plain, description)


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


def load_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, read: Reader, device: torch.device
) -> tuple[Averages, dict[str, Any]]:
    """Put a saved state into ``model`` and ``optimizer``; return the running sums and the description.

    Args:
        path: the state.
        model: gets its parameters.
        optimizer: gets what it kept.
        read: from the path to tensors, of which this process may want parts alone, and the description.
        device: where the running sums are wanted.

    Raises:
        UserError: the file is missing or damaged, or of another model or optimizer.
    """
    if not is_file(path):
        raise UserError(f"There is nothing to resume: no {path}.")
    tensors, description = read(path)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "averages": {}, "optimizer": {}, "groups": {}}
    for name, tensor in tensors.items():
        part, _, tensor_name = name.partition("/")
        parts[part][tensor_name] = tensor
    state = optimizer.state_dict()
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
