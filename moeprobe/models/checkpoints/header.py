"""What a checkpoint's file says of itself in its header, read without its weights and without importing torch."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.location import find_checkpoint
from moeprobe.models.config import NUM_EXPERTS, ROUTER, ModelConfig
from moeprobe.runtime.catalog import ROUTERS, check_plugins
from moeprobe.runtime.files import is_file, sha256, status
from moeprobe.runtime.schema import ConfigSection, Plugin, lower_first, sentence, split_assignments

# Settings under which a trained model is probed: ``PATH,top_k=1,capacity=0.5``. Nothing here imports torch.
#
# They change how the model serves its tokens, never what it has learned, so that one run can hold a checkpoint against
# itself: with another k, less room for each expert, or without experts.


class ServingSettings(ConfigSection):
    """What is written after a checkpoint's path, ``,key=value`` each; None = as trained."""

    model_config = ConfigDict(strict=False)
    top_k: int | None = Field(None, gt=0, description="experts that a token chooses")
    renormalise: bool | None = Field(
        None, description="divide the weights of a token's experts by their sum, or do not"
    )
    capacity: Annotated[float, Field(gt=0, le=2**30)] | Literal["trained"] | None = Field(
        None,
        description="capacity of an expert as a multiple of its even share, C = ⌈S · k · capacity / E⌉ of a group's S "
        "tokens; trained: as the model is evaluated",
    )
    priority: Literal["order", "gate"] | None = Field(
        None, description="who takes the room first: tokens in their order, or by their largest gate (BPR)"
    )
    experts: str | None = Field(
        None,
        description="off: experts add nothing; without-N: expert N adds nothing; only-N: all are copies of expert N",
    )

    @field_validator("experts")
    @classmethod
    def _of_experts(cls, experts: str | None) -> str | None:
        if experts is not None and not re.fullmatch(r"off|(without|only)-\d+", experts):
            raise ValueError("input should be off, without-N or only-N, N the number of an expert")
        return experts

    @property
    def suffix(self) -> str:
        """What follows the name of the checkpoint in tables; empty where nothing is changed."""
        return suffix_of(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return the changed settings by name."""
        return self.model_dump(exclude_none=True)

    def switches(self) -> dict[str, Any]:
        """Return what ``experts`` says as arguments of ``nn.capture.switch_experts``."""
        if self.experts is None:
            return {}
        kind, _, number = self.experts.partition("-")
        return {kind: int(number) if number else True}

    def apply_to(self, config: ModelConfig) -> ModelConfig:
        """Return the description of a model that serves as these settings say.

        Raises:
            UserError: there are not so many experts, or none at all.
        """
        if config.dense and self.suffix:
            raise UserError(f"The model is dense: leave the settings {self.suffix.removeprefix(',')!r} out.")
        num_experts = config.num_experts or NUM_EXPERTS
        if self.top_k is not None and self.top_k > num_experts:
            raise UserError(f"top_k={self.top_k} is more than the {num_experts} experts of a layer.")
        if any(number >= num_experts for number in self.switches().values() if number is not True):
            raise UserError(f"experts={self.experts}: the experts of a layer are 0 to {num_experts - 1}.")
        changes: dict[str, Any] = {}
        if self.top_k is not None:
            changes["top_k"] = self.top_k
        if self.priority is not None:
            changes["batch_priority"] = self.priority == "gate"
        if isinstance(self.capacity, float):
            # Without rounding up to a multiple of four, with which a small group has room for all.
            changes |= {
                "eval_capacity_factor": self.capacity,
                "capacity_multiple_of": 1,
                "capacity_rounding": "ceil",
            }
        # Routers take the option as a parameter, so that it is set where they are made.
        if self.renormalise is not None:
            router = config.router or Plugin(name=ROUTER)
            changes["router"] = Plugin.model_validate(
                {"name": router.name, **router.parameters, "renormalise": self.renormalise}
            )
        return config.model_copy(update=changes)


def suffix_of(settings: Mapping[str, Any]) -> str:
    """Return settings as they follow the name of a model in tables, ``,key=value`` each."""
    return "".join(
        f",{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
    )


def split_settings(source: str | Path) -> tuple[str | Path, ServingSettings]:
    """Return the path of a checkpoint and the settings that follow it, if there are any.

    Raises:
        UserError: there is no such setting, one is named twice, or its value does not fit.
    """
    path, assignments = split_assignments(str(source))
    # A file whose name really contains such a text is itself.
    if not assignments or status(Path(source)) is not None:
        return source, ServingSettings()
    values: dict[str, str] = {}
    for key, value in assignments:
        if key in values:
            raise UserError(f"{str(source)!r} has the setting {key} twice; name it once.")
        values[key] = value
    try:
        return path, ServingSettings.model_validate_strings(values)
    except ValidationError as error:
        raise UserError(sentence(error, ServingSettings, what="setting")) from None


def refuse_settings(source: str) -> None:
    """Raise ``UserError`` where settings follow the name of another program's model, which serves as it does."""
    name, assignments = split_assignments(source)
    if assignments:
        settings = source.removeprefix(f"{name},")
        raise UserError(
            f"Settings are for checkpoints of moeprobe and models of hf:; leave {settings!r} out after {name!r}."
        )


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
    settings: ServingSettings = field(default_factory=ServingSettings)

    @property
    def hash(self) -> str:
        """SHA-256 of the file."""
        return sha256(self.path)

    def check_router(self) -> None:
        """Raise ``UserError`` where the model has a router of a plug-in that is not known here."""
        if self.model.router_name not in ROUTERS:
            # The plug-in's name is in the training, and tells which file is missing.
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
        layers = [match[1] for match in map(_EXPERTS.fullmatch, self.shapes) if match]
        # By numbers: blocks.10 comes after blocks.9.
        return tuple(sorted(layers, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]))


def read_header(path: Path) -> Header:
    """Return what the header of a file says; no tensor is read.

    Raises:
        UserError: the file is truncated, is not a safetensors file, or was not written by moeprobe.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            # A slice knows its shape without being read.
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        description = json.loads(metadata["description"])
    except RecursionError:
        raise UserError(f"{path} has a description that is nested too deeply.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a safetensors file, or is truncated ({error}).") from None
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
        source: a path, and settings after it (see ``ServingSettings``).

    Raises:
        UserError: it is missing, truncated, or foreign, or a setting does not fit it.
    """
    location, settings = split_settings(source)
    path = find_checkpoint(location)
    header = read_header(path)
    if header.description.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of a format that this version reads ({FORMAT}).")
    try:
        description = _Description.model_validate(header.description)
    except ValidationError as error:
        reason = sentence(error, _Description, what="description")
        raise UserError(
            f"{path} describes no model that this version can build: {lower_first(reason)}"
        ) from None
    info = CheckpointInfo(
        path=path,
        name=f"{path.parent.name}{settings.suffix}",
        model=settings.apply_to(description.model),
        training=header.description.get("training", {}),
        class_names=tuple(description.class_names),
        settings=settings,
    )
    return info, header
