"""Open models by name: checkpoints of moeprobe, and models of other programs by their adapters."""

from pathlib import Path
from typing import Any

from torch import nn

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.schemes import adapter_of
from moeprobe.adapters.swin_moe import SwinMoe
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError, option
from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.catalog import ROUTERS, is_foreign
from moeprobe.runtime.device import AUTO, check_dtype, choose_device
from moeprobe.runtime.placement import make_placement
from moeprobe.runtime.run_files import TAKEN
from moeprobe.runtime.seeds import random_state_kept

# Files are called by a model's name and some more, and most systems allow 255 bytes in all.
_LONGEST_NAME = 200


@check_arguments
@random_state_kept()
def load_model(
    source: str | Path,
    *,
    device: str = "auto",
    trained_capacity: bool = False,
    group_images: int = 1,
    dtype: str = AUTO,
    prompt: str | None = None,
    image_size: int | None = None,
    device_map: str | Path | None = None,
    max_memory: str | None = None,
    offload: str | Path | None = None,
) -> Checkpoint:
    """Load a checkpoint, or open a foreign model, for probing.

    Args:
        source: a run folder (its last checkpoint) or a ``.safetensors`` file, with settings after it
            (``"run,top_k=1"``), ``hf:`` and a folder or name of Hugging Face's ``transformers``, with settings of its
            own, or ``py:package.module:factory``.
        device: "auto" takes CUDA, then MPS, then the CPU.
        trained_capacity: keep the capacity that the model evaluates with (which may be none), instead of no limit.
        group_images: images that compete for that capacity.
        dtype: precision of all of a model of ``hf:``: "float32", "bfloat16" or "float16"; "auto" = as it was saved.
        prompt: lets a vision-language model of ``hf:`` read pictures, each beside this prompt; None = texts.
        image_size: side in pixels of these pictures; None = the processor's own for a square picture.
        device_map: spreads a model of ``hf:`` over devices: "auto", "balanced", or a JSON file of modules and devices.
        max_memory: memory that it may use, such as "0:70GiB,cpu:100GiB"; the rest goes to the disk.
        offload: folder for these weights; they are removed with the model.

    Raises:
        UserError: it is missing, truncated or foreign, or does not fit its settings.
    """
    check_dtype(dtype)
    placement = make_placement(device, device_map, max_memory, offload)
    of_huggingface = {
        name: value
        for name, value, default in (
            ("dtype", dtype, AUTO), ("prompt", prompt, None), ("image_size", image_size, None),
        )
        if value != default
    }  # fmt: skip
    of_placement = {"device_map": device_map, "max_memory": max_memory, "offload": offload}
    for name in (*of_huggingface, *(name for name, value in of_placement.items() if value is not None)):
        if not is_huggingface(source):
            raise UserError(f"{option(name)} is for models of hf:; leave it out for {source}.")
    keywords: dict[str, Any] = of_huggingface | ({} if placement is None else {"placement": placement})
    if is_foreign(source):
        return _open(
            str(source),
            device=choose_device(device),
            trained_capacity=trained_capacity,
            group_images=group_images,
            **keywords,
        )

    model, info = load(source)
    trained_capacity = trained_capacity or info.settings.capacity is not None
    traceable = (Vmoe if info.model.swin is None else SwinMoe)(
        model,
        mean=info.model.mean,
        std=info.model.std,
        router_name=info.model.router_name,
        trained_capacity=trained_capacity,
        group_images=group_images,
    ).to(choose_device(device))
    return Checkpoint(
        name=info.name,
        model=traceable,
        framing=Framing(traceable.image_size[0], info.model.crop_fraction),
        class_names=info.class_names,
        train_seed=info.training.get("seed"),
        group=info.training.get("group", ""),
        provenance={
            "path": str(info.path),
            "sha256": info.hash,
            "capacity": _capacity(traceable, trained=trained_capacity),
            "group_images": traceable.group_images,
            "training": info.training,
            **({"served": info.settings.plain()} if info.settings.suffix else {}),
            # Weights alone do not say how a router from outside of the package routes.
            **({"router": info.model.router_name} if info.model.router_name in ROUTERS.outside() else {}),
        },
    )


@random_state_kept()
def outline_model(
    source: str | Path,
    *,
    device: str,
    dtype: str,
    device_map: str | None,
    max_memory: str | None,
    offload: Path | None,
) -> Checkpoint | None:
    """Return a model of ``hf:`` without its weights; None where it has to be loaded.

    Args:
        source: as for ``load_model``, and so the options; others are for models of pictures, which are loaded.

    Raises:
        UserError: it cannot be opened.
    """
    placement = make_placement(device, device_map, max_memory, offload)
    adapter, reference = adapter_of(str(source))
    return adapter.outline(reference, device=choose_device(device), dtype=dtype, placement=placement)


def is_huggingface(source: Any) -> bool:
    """Whether a model is named as one of Hugging Face's ``transformers``."""
    return isinstance(source, str | Path) and str(source).startswith("hf:")


def as_checkpoint(model: Model, **more: Any) -> Checkpoint:
    """Return a checkpoint as it is, or load it; ``more`` as for ``load_model``.

    Raises:
        UserError: it is neither a checkpoint nor the path or name of one.
    """
    if isinstance(model, Checkpoint):
        if more.get("dtype", AUTO) not in (AUTO, model.provenance.get("dtype")):
            raise UserError(
                f"{model.name} is loaded already, in another precision; choose it where it is loaded: "
                f"api.load_model('hf:…', dtype={more['dtype']!r})."
            )
        for name in ("device_map", "max_memory", "offload"):
            if more.get(name) is not None:
                raise UserError(
                    f"{model.name} is loaded already; {option(name)} belongs where it is loaded: "
                    f"api.load_model('hf:…', {name}=…)."
                )
        return model
    if isinstance(model, str | Path):
        return load_model(model, **more)
    if isinstance(model, nn.Module):
        hooks = "api.Hooks(net, image_size=…)"
    elif isinstance(model, Hooks):
        hooks = "hooks"
    else:
        raise UserError(
            f"A checkpoint is a path, or what api.load_model returns; got {type(model).__name__}."
        )
    raise UserError(
        f"A {type(model).__name__} cannot be probed as it is; wrap it: api.wrap({hooks}, name='mine')."
    )


@check_arguments
def wrap(model: Hooks, *, name: str) -> Checkpoint:
    """Return a model of your own, made traceable by ``Hooks``, ready to probe; tables call it ``name``.

    The gate of this model sends red pixels to expert 0 and blue ones to expert 1:

    >>> import torch
    >>> from moeprobe import api
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gate = torch.nn.Linear(3, 2, bias=False)
    ...         self.gate.weight.data = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    ...         self.experts = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
    ...     def forward(self, images):
    ...         pixels = images.flatten(2).mT
    ...         weight, chosen = self.gate(pixels).softmax(-1).topk(1)
    ...         outputs = torch.stack([expert(pixels) for expert in self.experts], dim=2)
    ...         return (weight * outputs.take_along_dim(chosen[..., None], dim=2)[:, :, 0]).mean(1)
    >>> model = api.wrap(api.Hooks(Net(), image_size=2, mean=[0, 0, 0], std=[1, 1, 1]), name="toy")
    >>> red = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> scores, routing = api.trace(model, torch.stack([red, 0 * red, 1 - red])[None])
    >>> routing.layers["gate"].selected.flatten().tolist()
    [0, 1, 0, 1]

    Raises:
        UserError: it is a module without ``Hooks``, or files cannot be called by the name.
    """
    if not isinstance(model, Hooks):
        raise UserError(
            f"A {type(model).__name__} does not say how it is read; say it with Hooks: "
            f"api.wrap(api.Hooks(net, image_size=…), name={name!r})."
        )
    return _check_name(model.checkpoint(name))


def _open(source: str, **more: Any) -> Checkpoint:
    """Return another program's model, as its adapter opens it."""
    adapter, reference = adapter_of(source)
    return _check_name(adapter.open(reference, **more))


def _check_name(checkpoint: Checkpoint) -> Checkpoint:
    """Return another program's model, by whose name files and folders are called.

    Raises:
        UserError: the name is not one ordinary part of a path.
    """
    name = checkpoint.name
    ordinary = name.isprintable() and name == name.strip() and not set(name) & set("/\\")
    if not name or not ordinary or name.startswith(".") or len(name.encode()) > _LONGEST_NAME:
        raise UserError(
            f"A model cannot be called {name[:80]!r}, because its files carry this name. Choose one part of a path, "
            f"without '/' or a leading dot, of at most {_LONGEST_NAME} bytes (name: in its settings, or its folder)."
        )
    if name.casefold() in TAKEN:
        raise UserError(f"A model cannot be called {name!r}: that is what runs call a file of their own.")
    return checkpoint


def _capacity(model: Vmoe, *, trained: bool) -> str:
    """Return the capacity factors that a model is probed with, of all its layers.

    "none" where it has no limit of its own; "unlimited" where ``trained`` False has lifted what limits there may be.
    """
    factors = dict.fromkeys(model.capacity_factors.values())
    if not trained and not any(factors):
        return "unlimited"
    return " and ".join("none" if factor is None else f"{factor:g}" for factor in factors)
