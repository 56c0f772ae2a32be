"""The dense weights that a sparse model is to start from: a file, or what timm's hub has."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.config import ModelConfig, UpcycleConfig
from moeprobe.models.nn.build import is_ours
from moeprobe.models.nn.upcycle import upcycle
from moeprobe.models.timm import VisionTransformer, is_model, list_models, load_state_dict, timm
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.files import DAMAGE, is_file, sha256


def upcycle_from(model: VisionTransformer, config: ModelConfig) -> dict[str, Any]:
    """Start ``model`` from the dense weights that ``config.upcycle`` names; return where they are from.

    Raises:
        UserError: there are no such weights, they are damaged, or they do not fit the model.
    """
    assert config.upcycle is not None
    dense, origin = _from_file(config.upcycle) if config.upcycle.file else _from_hub(config.upcycle, config)
    upcycle(model, dense, source=origin["source"])
    return {"name": config.upcycle.name, **origin}


def check_dense(config: UpcycleConfig) -> None:
    """Raise ``UserError`` unless the name belongs to a dense vision transformer of timm."""
    if not is_model(config.name):
        hint = did_you_mean(config.name, list_models())
        raise UserError(
            f"timm has no model {config.name!r} to upcycle.{hint} timm.list_models('*vit*') names them."
        )
    if is_ours(config.name):
        raise UserError(
            f"{config.name!r} is sparse already; to start from its weights set initialise.checkpoint."
        )
    with torch.device("meta"):
        model = timm.create_model(config.name)
    if not isinstance(model, VisionTransformer):
        raise UserError(
            f"{config.name!r} is a {type(model).__name__}; only vision transformers (VisionTransformer of timm) can be "
            "upcycled."
        )


def _from_file(config: UpcycleConfig) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    path = Path(str(config.file))
    if not is_file(path):
        raise UserError(f"There is no file {path} of dense weights; give another model.upcycle.file.")
    try:
        with warnings.catch_warnings(action="ignore"):  # of other versions of the format
            tensors = load_state_dict(str(path))
    except (SafetensorError, *DAMAGE) as error:
        raise UserError(
            f"{path} holds no weights that can be read without executing it: {_in_short(error)}."
        ) from None
    if not tensors or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()
    ):
        raise UserError(f"{path} holds no weights: a mapping of parameters' names to tensors is needed.")
    return tensors, {"source": str(path), "sha256": sha256(path)}


def _from_hub(config: UpcycleConfig, model: ModelConfig) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    pretrained = timm.get_pretrained_cfg(config.name)
    if pretrained is None or not pretrained.has_weights:
        raise UserError(
            f"timm has no pretrained weights for {config.name!r}; give a file: model.upcycle.file=PATH."
        )
    if (model.mean, model.std) != (list(pretrained.mean), list(pretrained.std)):
        raise UserError(
            f"The pretrained weights of {config.name!r} take images of another normalization: set "
            f"model.mean={_written(pretrained.mean)} model.std={_written(pretrained.std)}."
        )
    try:
        dense = timm.create_model(config.name, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The pretrained weights of {config.name!r} cannot be fetched ({_in_short(error)}); give a file: "
            "model.upcycle.file=PATH."
        ) from None
    return dense.state_dict(), {
        "source": f"timm {pretrained.architecture}.{pretrained.tag}".removesuffix(".")
    }


def _in_short(error: Exception) -> str:
    """Return the first sentence; the rest is advice for callers of the library."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")


def _written(values: tuple[float, ...]) -> str:
    return f"[{','.join(f'{value:g}' for value in values)}]"
