"""What a checkpoint's file says of itself in its header, read without its weights and without importing torch."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.settings import Settings, split_settings
from moeprobe.models.config import ModelConfig
from moeprobe.runtime.catalog import ROUTERS, check_plugins
from moeprobe.runtime.files import find_checkpoint, is_file, sha256
from moeprobe.runtime.schema import lower_first, sentence

FORMAT = "moeprobe-checkpoint-1"
# Every MoE layer has these parameters, whatever routes to them.
_EXPERTS = re.compile(r"(.+)\.mlp\.experts\.fc1\.weight")


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says of itself.

    Attributes:
        path: the safetensors file.
        name: the folder's name, which is what tables call it.
        model: how to build the model.
        training: seed, group, data, objective, steps, validation accuracy ... as trained.
        class_names: in label order.
        settings: under which it is probed; they are part of the name, and of what ``model`` says.
    """

    path: Path
    name: str
    model: ModelConfig
    training: dict[str, Any]
    class_names: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)

    @property
    def hash(self) -> str:
        """SHA-256 of the file."""
        return sha256(self.path)

    def check_router(self) -> None:
        """Raise ``UserError`` where the model has a router of a plug-in that is not known here."""
        if self.model.router_name not in ROUTERS:
            check_plugins(self.path, self.training.get("plugins"))


class _Training(BaseModel):
    """What is read of a checkpoint's training; there may be more."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str = ""
    group: str = ""
    seed: int | None = None
    data: str | None = None
    objective: dict[str, Any] | None = None
    view: dict[str, Any] | None = None
    initialise: dict[str, Any] | None = None
    step: int | None = None
    total_steps: int | None = None
    val_accuracy: float | None = None


class _Description(BaseModel):
    """What a checkpoint's file says of it."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    model: ModelConfig
    training: _Training = _Training()
    class_names: list[str] = []


@dataclass(frozen=True)
class Header:
    """The header of a file of tensors: the description, and name -> shape."""

    description: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @property
    def moe_layers(self) -> tuple[str, ...]:
        """The MoE layers in forward order, named by the block they are in."""
        found = [match[1] for match in map(_EXPERTS.fullmatch, self.shapes) if match]
        return tuple(sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]))


def read_header(path: Path) -> Header:
    """Return what the header of a file says; no tensor is read.

    Raises:
        UserError: the file is truncated, is no safetensors file, or was not written by moeprobe.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        description = json.loads(metadata["description"])
    except RecursionError:
        raise UserError(f"{path} has a description that is nested too deeply.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is truncated or no safetensors file ({error}).") from None
    except KeyError:
        raise UserError(f"{path} is a safetensors file, but not one that moeprobe wrote.") from None
    if not isinstance(description, dict):
        raise UserError(f"{path} is a safetensors file, but not one that moeprobe wrote.")
    return Header(description, shapes)


def is_written_by_moeprobe(path: Path) -> bool:
    """Whether a file holds weights, or the state of a run, that say of themselves that moeprobe wrote them."""
    try:
        return is_file(path) and str(read_header(path).description.get("format")).startswith("moeprobe-")
    except UserError:
        return False


def read_info(source: str | Path) -> tuple[CheckpointInfo, Header]:
    """Return what a checkpoint says of itself, and the header that says so.

    Args:
        source: a path, and settings after it (see ``Settings``).

    Raises:
        UserError: it is missing, truncated, or foreign, or a setting does not fit it.
    """
    location, settings = split_settings(source)
    path = find_checkpoint(location)
    header = read_header(path)
    if header.description.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of a format that this version reads ({FORMAT}).")
    try:
        about = _Description.model_validate(header.description)
    except ValidationError as error:
        said = sentence(error, _Description, what="description")
        raise UserError(
            f"{path} describes no model that this version can build: {lower_first(said)}"
        ) from None
    info = CheckpointInfo(
        path=path,
        name=f"{path.parent.name}{settings.suffix}",
        model=settings.applied(about.model),
        training=header.description.get("training", {}),
        class_names=tuple(about.class_names),
        settings=settings,
    )
    return info, header
