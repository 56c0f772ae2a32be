"""What must be known of a torch module before it can be probed: the keys of ``Hooks`` and of its YAML file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import nn

from moeprobe.errors import UserError
from moeprobe.models import config
from moeprobe.runtime.schema import Section, sentence

# What can be read off a router's output.
KEYS = ("logits", "indices", "weights")
# Given a router, what it was called with and what it returned: {"logits": ..., "indices": ...}.
Reader = Callable[[nn.Module, tuple[Any, ...], Any], Mapping[str, Any]]
Place = int | str
Read = Mapping[str, Place] | Reader
Activation = Literal["softmax", "sigmoid", "none"]
# What ``activation`` was called: settings may still say so, and what is written and hashed does.
EARLIER = "before"


class Settings(Section):
    """What ``Hooks`` takes; a YAML file has the same keys, but for those that need Python."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    routers: str | type[nn.Module] | None = None
    read: Read | None = None
    activation: Activation | None = None
    top_k: int | None = Field(None, gt=0)
    image_size: int = Field(ge=1, le=16_384)
    patch_size: int | dict[str, int] | None = None
    num_prefix_tokens: int = Field(0, ge=0)
    sequence_first: bool = False
    token_local: bool | None = None
    mean: list[float] = Field(min_length=3, max_length=3)
    std: list[Annotated[float, Field(gt=0)]] = Field(min_length=3, max_length=3)
    crop_fraction: float | None = Field(None, gt=0, le=1)
    classes: str | list[str] | None = None
    output: Place | None = None
    head: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, content: Any) -> Any:
        if not isinstance(content, dict) or EARLIER not in content:
            return content
        if content.get("activation") is not None:
            raise ValueError(f"{EARLIER} is the earlier name of activation; omit it")
        return {key: value for key, value in content.items() if key != EARLIER} | {
            "activation": content[EARLIER]
        }

    @field_validator("read")
    @classmethod
    def _known_keys(cls, read: Read | None) -> Read | None:
        if isinstance(read, Mapping) and not {"logits"} <= set(read) <= set(KEYS):
            raise ValueError("its keys are logits and, if the router returns them, indices and weights")
        if isinstance(read, Mapping) and "weights" in read and "indices" not in read:
            raise ValueError("weights are those of the indices, whose place it must say too")
        return read

    @field_validator("patch_size")
    @classmethod
    def _some_pixels(cls, patch_size: int | dict[str, int] | None) -> int | dict[str, int] | None:
        sizes = patch_size.values() if isinstance(patch_size, dict) else [patch_size]
        if any(size is not None and size < 1 for size in sizes):
            raise ValueError("a patch has at least one pixel along its side")
        return patch_size

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them; classes and functions by their names."""
        content = self.model_dump(exclude_none=True)
        if "activation" in content:
            content[EARLIER] = content.pop("activation")
        for key in ("routers", "read"):
            if callable(content.get(key)):
                content[key] = f"{content[key].__module__}.{content[key].__qualname__}"
        return content


class FileSettings(Settings):
    """A YAML file: what the tables call the model (the file's own name by default), and its parameters' file."""

    name: str
    weights: str | None = None


def checked(content: Mapping[str, Any]) -> Settings:
    """Return the settings given in Python.

    Raises:
        UserError: a key is missing or has a value of the wrong type.
    """
    try:
        return Settings.model_validate(
            {key: list(value) if isinstance(value, tuple) else value for key, value in content.items()}
        )
    except ValidationError as error:
        raise UserError(sentence(error, Settings, what="settings of a torch module")) from None


def load(path: Path) -> FileSettings:
    """Return the settings of a YAML file.

    Raises:
        UserError: it cannot be read, a key is unknown or missing, or has a value of the wrong type.
    """
    if not path.is_file():
        raise UserError(f"There is no settings file {path}.")
    try:
        return FileSettings.model_validate(config.read(path))
    except ValidationError as error:
        raise UserError(sentence(error, FileSettings, what=f"settings {path}")) from None
