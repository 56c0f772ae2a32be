"""Checkpoints: safetensors with a JSON description, each file written whole or not at all.

A run folder ``checkpoints/NAME/`` holds ``config.yaml``, ``last.safetensors`` and ``best.safetensors`` (parameters;
the description is in the file's header and, for people, in a ``.json`` next to it), ``state.safetensors`` while a
run is unfinished, ``metrics.csv`` and the training curve. Where a command wants a checkpoint, a folder means its
``last.safetensors`` (the full budget, nothing selected); name ``best.safetensors`` for the best on validation.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from moeprobe import __version__
from moeprobe.errors import UserError
from moeprobe.models.checkpoints import header
from moeprobe.models.checkpoints.header import FORMAT, CheckpointInfo, Header
from moeprobe.models.config import ModelConfig, choose
from moeprobe.models.nn.build import build_unfilled
from moeprobe.models.nn.capture import switch_experts
from moeprobe.models.nn.swin import build_swin
from moeprobe.models.nn.upcycle import transfer
from moeprobe.models.timm import SwinTransformer, VisionTransformer
from moeprobe.runtime.files import atomic_file, write_json


def save(
    path: Path,
    model: nn.Module,
    *,
    config: ModelConfig,
    training: dict[str, Any],
    class_names: tuple[str, ...],
    parameters: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the parameters of a model with their description, without the ``decoder`` of a pretraining.

    ``parameters``: the model's own state, where this process' model does not hold all of it.
    """
    description = {
        "format": FORMAT,
        "moeprobe": __version__,
        "model": config.model_dump(),
        "training": training,
        "class_names": list(class_names),
    }
    state = model.state_dict() if parameters is None else parameters
    tensors = {name: tensor for name, tensor in state.items() if not name.startswith("decoder.")}
    write_tensors(path, tensors, description)
    write_json(path.with_suffix(".json"), description)


def write_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and a description in one file, whole or not at all.

    Raises:
        UserError: the folder cannot be written to, or the disk is full.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata={"description": json.dumps(description)})
        except SafetensorError as error:
            # The error of the system is only in the text: "... No space left on device (os error 28)".
            match = re.search(r"\(os error (\d+)\)", str(error))
            if match is None:
                raise
            number = int(match[1])
            raise OSError(number, os.strerror(number)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of a file.

    Raises:
        UserError: the file is truncated, is not a safetensors file, or was not written by moeprobe.
    """
    file_header = header.read_header(path)
    return _tensors(path, file_header), file_header.description


def read_info(source: str | Path) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    """Return what a checkpoint says of itself, and its parameters.

    Raises:
        UserError: it is missing, truncated, or foreign.
    """
    info, file_header = header.read_info(source)
    return info, _tensors(info.path, file_header)


def _tensors(path: Path, file_header: Header) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file_header.shapes}
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a safetensors file, or is truncated ({error}).") from None


def load(source: str | Path) -> tuple[VisionTransformer | SwinTransformer, CheckpointInfo]:
    """Return the model of a checkpoint, with its parameters.

    Raises:
        UserError: it is missing, truncated or foreign, or its parameters do not fit the model it describes.
    """
    info, tensors = read_info(source)
    info.check_router()
    model = build_unfilled(info.model) if info.model.swin is None else build_swin(info.model)
    types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    # Copies, since what was read is the file itself, which may change.
    parameters = {
        name: tensor.to(types.get(name, tensor.dtype), copy=True) for name, tensor in tensors.items()
    }
    try:
        model.load_state_dict(parameters, assign=True)
    except RuntimeError as error:
        raise UserError(
            f"The parameters in {info.path} do not fit the model it describes ({error})."
        ) from None
    switch_experts(model, **info.settings.switches())
    return model, info


def initialise_from(
    model: VisionTransformer,
    source: str | Path,
    *,
    keep_head: bool = False,
    fresh: Sequence[str] = (),
    class_names: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Start ``model`` from a checkpoint of another resolution, head or top-k; return its path and hash.

    Everything except the head and the pre-logits is taken over (with ``keep_head`` they are too). Parameters that match
    a pattern in ``fresh`` stay as initialized; position embeddings are resampled. ``class_names`` come from
    the data, None where unknown.

    Raises:
        UserError: a parameter has no partner or another shape, a pattern matches none, or a head is to be kept that is
            of other classes.
    """
    info, tensors = read_info(source)
    if keep_head and class_names is not None and info.class_names != class_names:
        raise UserError(
            f"The head of {info.path} is of other classes than the data; set initialise.keep_head to false."
        )
    model_state = model.state_dict()
    new = () if keep_head else ("head.", "fc_norm.")
    # A router of another kind has parameters of its own: what is fresh may be of either side.
    fresh_names = choose(fresh, dict.fromkeys([*model_state, *tensors]), key="initialise.fresh")
    transferred = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(new) and name not in fresh_names
    }
    if ("cls_token" in transferred) != ("cls_token" in model_state):
        of_checkpoint, of_model = (
            ("gap", "token")[int("cls_token" in side)] for side in (transferred, model_state)
        )
        raise UserError(
            f"{info.path} has the head {of_checkpoint!r} and the configured model {of_model!r}: "
            f"set model.head={of_checkpoint}."
        )
    advice = "are the MoE layers and the head the same?"
    transfer(model, transferred, fresh=(*new, *fresh_names), source=str(info.path), advice=advice)
    return {"path": str(info.path), "sha256": info.hash}
