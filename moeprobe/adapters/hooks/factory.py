"""A torch module by name: ``package.module:factory``, with a YAML file of settings as ``…:factory@settings.yaml``."""

import dataclasses
import hashlib
import importlib
import re
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.hooks.settings import FileSettings, load
from moeprobe.errors import UserError
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.files import DAMAGE, sha256

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
            raise UserError(f"{name} raised {_described(error)}") from error
    if settings is not None and settings.weights is not None and settings_file is not None:
        if not isinstance(value, nn.Module):
            raise UserError(f"{name} gives a {type(value).__name__}, into which no weights can be loaded.")
        load_weights(value, settings_file.parent / settings.weights)
    file = getattr(module, "__file__", None)
    return Made(value, name, None if file is None else Path(file), settings, settings_file)


def _described(error: BaseException) -> str:
    """Return an exception as the end of a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."


def _import(name: str) -> Any:
    # As ``python -m`` does: modules in the current folder can be named.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"There is no Python module {name!r}, installed or in {Path.cwd()}.") from None
        raise UserError(f"Importing {name} raised {_described(error)}") from error
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"Importing {name} raised {_described(error)}") from error


def _attribute(module: Any, path: str) -> Any:
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            own = [name for name, item in vars(value).items() if callable(item) and not name.startswith("_")]
            raise UserError(f"There is no {path!r} in {module.__name__}.{did_you_mean(part, own)}")
        value = getattr(value, part)
    return value


def load_weights(net: nn.Module, path: Path) -> None:
    """Load a state dict, from safetensors or from what ``torch.save`` wrote (tensors only, nothing is executed).

    A state dict under the key ``state_dict`` or ``model`` is found; the prefix of data parallelism is taken off.

    Raises:
        UserError: it cannot be read, or does not fit the module.
    """
    if not path.is_file():
        raise UserError(f"There is no file of weights {path}.")
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
            held = sum(member.file_size for member in archive.infolist())
    except DAMAGE:
        return  # torch says what it thinks of it
    if held > path.stat().st_size:
        raise UserError(
            f"Cannot read the weights {path}: they are packed, which torch.save never does; unpack them."
        )


def _state_dict(path: Path) -> dict[str, Tensor]:
    _check_not_packed(path)
    try:
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


def with_code(checkpoint: Checkpoint, made: Made) -> Checkpoint:
    """Return the model with a hash that is about what makes it as well: the factory, and the Python file it is in."""
    code = "" if made.file is None else sha256(made.file)
    whole = f"{checkpoint.provenance['sha256']} {made.factory} {code}"
    return dataclasses.replace(
        checkpoint,
        provenance={**checkpoint.provenance, "sha256": hashlib.sha256(whole.encode()).hexdigest()},
    )


def of_files(made: Made) -> dict[str, Any]:
    """Return where a model is from."""
    files = {"path": made.settings_file, "file": made.file}
    origin = {"path": made.factory, "factory": made.factory}
    return origin | {key: str(path) for key, path in files.items() if path is not None}
