"""A torch module by name: ``package.module:factory``, with a YAML file of settings as ``…:factory@settings.yaml``."""

import dataclasses
import hashlib
import importlib
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.models import config
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.files import DAMAGE, is_file, sha256
from moeprobe.runtime.schema import ConfigSection, sentence
from moeprobe.runtime.similar_paths import did_you_mean_path
from moeprobe.runtime.torch_names import check_names
from moeprobe.runtime.torchvision_compat import import_with_operators

# What must be known of a torch module before it can be probed: the keys of ``Hooks`` and of its YAML file.

# What can be read off a router's output.
KEYS = ("logits", "indices", "weights")
# One of these at least.
NEEDED = KEYS[:2]
# Given a router, what it was called with and what it returned: {"logits": ..., "indices": ...}.
Reader = Callable[[nn.Module, tuple[Any, ...], Any], Mapping[str, Any]]
Place = int | str
Read = Mapping[str, Place] | Reader
Activation = Literal["softmax", "sigmoid", "none"]
# What ``activation`` was called: settings may still say so, and what is written and hashed does.
EARLIER = "before"


def has_choice(read: Mapping[str, Any]) -> bool:
    """Whether the outputs that ``read`` names include the router's choice, and all of them are known keys."""
    return bool(set(NEEDED) & set(read)) and set(read) <= set(KEYS)


class HookSettings(ConfigSection):
    """Settings of ``Hooks``; a YAML file has the same keys, except the ones that need Python."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    routers: str | type[nn.Module] | None = None
    read: Read | None = None
    activation: Activation | None = None
    top_k: int | None = Field(None, gt=0)
    num_experts: int | None = Field(None, gt=0)
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
    scores: bool = True
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
        if isinstance(read, Mapping) and not has_choice(read):
            raise ValueError(f"its keys are {' or '.join(NEEDED)}, or both, and beside the indices weights")
        if isinstance(read, Mapping) and "weights" in read and "indices" not in read:
            raise ValueError("weights belong to the indices, so the place of the indices is needed too")
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
        if self.scores:  # as it was before there was a choice: models keep their hashes
            del content["scores"]
        if "activation" in content:
            content[EARLIER] = content.pop("activation")
        for key in ("routers", "read"):
            if callable(content.get(key)):
                content[key] = f"{content[key].__module__}.{content[key].__qualname__}"
        return content


class FileSettings(HookSettings):
    """A YAML file: what the tables call the model (the file's own name by default), and its parameters' file."""

    name: str
    weights: str | None = None


def parse_settings(content: Mapping[str, Any]) -> HookSettings:
    """Return the settings given in Python.

    Raises:
        UserError: a key is missing or has a value of the wrong type.
    """
    try:
        return HookSettings.model_validate(
            {key: list(value) if isinstance(value, tuple) else value for key, value in content.items()}
        )
    except ValidationError as error:
        raise UserError(sentence(error, HookSettings, what="settings of a torch module")) from None


def load(path: Path) -> FileSettings:
    """Return the settings of a YAML file.

    Raises:
        UserError: it cannot be read, a key is unknown or missing, or has a value of the wrong type.
    """
    if not is_file(path):
        raise UserError(f"There is no settings file {path}.{did_you_mean_path(path)}")
    try:
        return FileSettings.model_validate(config.read(path))
    except ValidationError as error:
        raise UserError(sentence(error, FileSettings, what=f"settings {path}")) from None


FORM = "py:package.module:factory or py:package.module:factory@settings.yaml"
_REFERENCE = re.compile(r"(?P<module>[\w.]+):(?P<factory>[\w.]+)(?:@(?P<settings>.+))?")
# Where programs keep the parameters among other things.
_PARAMETERS = ("state_dict", "model")


@dataclass(frozen=True)
class Made:
    """What a factory made.

    Attributes:
        value: whatever it returned.
        factory: ``module:factory``.
        file: the Python file, if it is one.
        settings: of the YAML file, None where none is named.
        settings_file: that file.
    """

    value: Any
    factory: str
    file: Path | None
    settings: FileSettings | None
    settings_file: Path | None


def make(reference: str) -> Made:
    """Call the factory that a reference names; a module (or the like) in its place is taken as it is.

    Raises:
        UserError: the reference is none, the settings or the factory are not there, or it raises.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise UserError(f"A torch module is named as {FORM}; got 'py:{reference}'.")
    settings_file = None if match["settings"] is None else Path(match["settings"])
    settings = None if settings_file is None else load(settings_file)
    module = _import(match["module"])
    value = _attribute(module, match["factory"])
    name = f"{match['module']}:{match['factory']}"
    if callable(value) and not isinstance(value, nn.Module):
        try:
            value = value()
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit too: the program would end as if all were done
            raise UserError(f"{name} raised {_error_sentence(error)}") from error
    if settings is not None and settings.weights is not None and settings_file is not None:
        if not isinstance(value, nn.Module):
            raise UserError(f"{name} gives a {type(value).__name__}, into which no weights can be loaded.")
        load_weights(value, settings_file.parent / settings.weights)
    file = getattr(module, "__file__", None)
    return Made(value, name, None if file is None else Path(file), settings, settings_file)


def _error_sentence(error: BaseException) -> str:
    """Return an exception as the end of a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."


def _import(name: str) -> Any:
    # As ``python -m`` does: modules in the current folder can be named.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        return import_with_operators(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"There is no Python module {name!r}, installed or in {Path.cwd()}.") from None
        raise UserError(f"Importing {name} raised {_error_sentence(error)}") from error
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"Importing {name} raised {_error_sentence(error)}") from error


def _attribute(module: Any, path: str) -> Any:
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            callables = [
                name for name, item in vars(value).items() if callable(item) and not name.startswith("_")
            ]
            raise UserError(f"There is no {path!r} in {module.__name__}.{did_you_mean(part, callables)}")
        value = getattr(value, part)
    return value


def load_weights(net: nn.Module, path: Path) -> None:
    """Load a state dict, from safetensors or from what ``torch.save`` wrote (tensors only, nothing is executed).

    A state dict under the key ``state_dict`` or ``model`` is found; the prefix of data parallelism is taken off.

    Raises:
        UserError: it cannot be read, or does not fit the module.
    """
    if not is_file(path):
        raise UserError(f"There is no file of weights {path}.{did_you_mean_path(path)}")
    tensors = _state_dict(path)
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    try:
        missing, unexpected = net.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        mismatch = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise UserError(f"{path} does not fit the module: {mismatch}.") from None
    for names, what in ((missing, "lacks"), (unexpected, "has, and the module has not,")):
        if names:
            raise UserError(
                f"{path} does not fit the module: of {len(tensors)} tensors it {what} {len(names)}, e.g. {names[0]}."
            )


def _check_not_packed(path: Path) -> None:
    """Raise ``UserError`` where an archive is packed, which torch's own are not: it would unpack to any size."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            unpacked_size = sum(member.file_size for member in archive.infolist())
    except DAMAGE:
        return  # torch says what it thinks of it
    if unpacked_size > path.stat().st_size:
        raise UserError(
            f"Cannot read the weights {path}: they are packed, which torch.save never does; unpack them."
        )


def _state_dict(path: Path) -> dict[str, Tensor]:
    _check_not_packed(path)
    try:
        if path.suffix != ".safetensors":
            check_names(path)
        with warnings.catch_warnings(action="ignore"):  # of other versions of the format
            content: Any = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
    except (SafetensorError, *DAMAGE):
        raise UserError(
            f"Cannot read the weights {path}: it should be safetensors, or tensors that torch.save wrote (objects of "
            "other kinds are not loaded)."
        ) from None
    for key in _PARAMETERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UserError(f"{path} holds no state dict (tensors by name).")
    return dict(content)


def with_code(checkpoint: Checkpoint, built: Made) -> Checkpoint:
    """Return the model with a hash that also covers the factory and its Python file."""
    code = "" if built.file is None else sha256(built.file)
    identity = f"{checkpoint.provenance['sha256']} {built.factory} {code}"
    return dataclasses.replace(
        checkpoint,
        provenance={**checkpoint.provenance, "sha256": hashlib.sha256(identity.encode()).hexdigest()},
    )


def of_files(built: Made) -> dict[str, Any]:
    """Return where a model is from."""
    files = {"path": built.settings_file, "file": built.file}
    origin = {"path": built.factory, "factory": built.factory}
    return origin | {key: str(path) for key, path in files.items() if path is not None}
