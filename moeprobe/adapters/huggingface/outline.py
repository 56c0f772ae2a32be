"""What a model of ``transformers`` is by its configuration and the headers of its files; no weight is read.

The model is built without memory for its parameters (torch's device ``meta``). What only passes show, which function
the gates are and whether experts follow the router, is no part of it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from moeprobe.adapters.huggingface import heads, routers
from moeprobe.adapters.huggingface.routers import count_parameters
from moeprobe.adapters.huggingface.settings import num_experts_of, top_k_of
from moeprobe.errors import UserError
from moeprobe.runtime.device import AUTO, FLOAT32

# Names of number formats in the headers of safetensors; others belong to quantized weights.
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Stored:
    """What the headers of a folder's safetensors say.

    Attributes:
        tensors: how many there are.
        numbers: how many numbers they hold.
        dtypes: their number formats, as safetensors calls them, sorted.
        size: bytes of the files.
    """

    tensors: int
    numbers: int
    dtypes: tuple[str, ...]
    size: int

    @classmethod
    def of_folder(cls, folder: Path) -> "Stored | None":
        """Return what the files of a folder hold; None where it has no safetensors."""
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            return None
        tensors, numbers, dtypes = 0, 0, set()
        for path in files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    part = file.get_slice(name)
                    tensors += 1
                    numbers += torch.Size(part.get_shape()).numel()
                    dtypes.add(part.get_dtype())
        return cls(tensors, numbers, tuple(sorted(dtypes)), sum(path.stat().st_size for path in files))


def build_outline(model_class: Any, config: Any) -> Any:
    """Return a model whose parameters have shapes and no memory.

    Args:
        model_class: of the library, such as ``heads.class_of`` returns.
        config: of the model; it is left as it is.
    """
    # The kernels of config.json may be code on the hub: not those.
    keywords = {"attn_implementation": None, "experts_implementation": None}
    with torch.device("meta"):
        # A copy, since the library sets formats in it.
        if hasattr(model_class, "from_config"):
            return model_class.from_config(copy.deepcopy(config), trust_remote_code=False, **keywords)
        return model_class._from_config(copy.deepcopy(config), **keywords)


def check_routers(model: Any) -> dict[str, routers.RouterLayer]:
    """Return the routers of the part that is probed, by their paths.

    Raises:
        UserError: there are none.
    """
    layers = routers.find_routers(heads.text_part(model))
    if not layers:
        raise UserError(
            f"A model of type {model.config.model_type!r} has no router that transformers records, so there is no "
            "routing to probe."
        )
    return layers


def describe_outline(model: Any, stored: Stored | None) -> dict[str, Any]:
    """Return the sizes of a model that was built without memory.

    Args:
        model: see ``build_outline``.
        stored: what the files hold; None = not known, as of names on the hub.

    Raises:
        UserError: it has no routers, or the files hold less than the model.
    """
    layers = check_routers(model)
    rows = [
        _row(name, layer, model.config)
        for name, layer in zip(routers.short_names(list(layers)), layers.values(), strict=True)
    ]
    total = count_parameters(model)
    # Quantized weights share numbers, or pack several into one.
    is_quantized = getattr(model.config, "quantization_config", None) is not None
    if stored is not None and stored.numbers < total and not is_quantized:
        raise UserError(
            f"The files hold {stored.numbers:,} numbers, and the model has {total:,}: weights are missing."
        )
    return describe_model(
        model,
        rows,
        dtype=dtype_of(model.config, stored),
        dense_layers=routers.blocks_without(
            heads.text_part(model), [layer.module for layer in layers.values()]
        ),
        bytes_on_disk=None if stored is None else stored.size,
    )


def describe_model(
    model: Any, rows: list[dict[str, Any]], *, dtype: str | None, dense_layers: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Return the sizes of a model, with or without memory; active parameters are those that one token meets.

    Args:
        model: of the library.
        rows: a description of each router.
        dtype: of its weights; None = not known.
        dense_layers: blocks without a router.
        more: what else is known of it.
    """
    body = heads.text_part(model)
    head = heads.head_of(body)
    embedding, total = body.get_input_embeddings(), count_parameters(model)
    return {
        "model": model.config.model_type,
        "class": type(model).__name__,
        "reads": "texts",
        "predicts": head.predicts,
        "class_names": list(head.class_names) or None,
        "part": "encoder" if model.config.is_encoder_decoder else "whole",
        "width": embedding.weight.shape[-1],
        "dtype": dtype,
        "vocabulary": embedding.weight.shape[0],
        "parameters": total,
        "active_parameters": active_parameters(total, rows),
        **more,
        "dense_layers": list(dense_layers),
        "layers": rows,
    }


def _row(name: str, layer: routers.RouterLayer, config: Any) -> dict[str, Any]:
    return {
        "layer": name,
        "router": type(layer.module).__name__,
        "num_experts": num_experts_of(config),
        "top_k": top_k_of(config),
        "expert_parameters": None if layer.experts is None else count_parameters(layer.experts),
    }


def active_parameters(total: int, rows: Sequence[dict[str, Any]]) -> int | None:
    """Return how many of ``total`` parameters one token meets; None where a layer's experts cannot be counted."""
    idle = 0
    for row in rows:
        sizes = [row[key] for key in ("expert_parameters", "num_experts", "top_k")]
        # If one layer's experts cannot be counted, a sum would be too low.
        if None in sizes:
            return None
        experts, count, top_k = sizes
        idle += round(experts * (count - top_k) / count)
    return total - idle


def weight_dtype(config: Any, stored: Stored | None, dtype: str) -> torch.dtype:
    """Return the precision that weights have in memory; ``dtype`` is the requested one, or "auto"."""
    name = (dtype_of(config, stored) or FLOAT32) if dtype == AUTO else dtype
    return getattr(torch, name)


def dtype_of(config: Any, stored: Stored | None) -> str | None:
    """Return the precision in which a model is loaded; None where neither its configuration nor its files have one."""
    if config.dtype is not None:
        return str(config.dtype).removeprefix("torch.")
    if stored is None or len(stored.dtypes) != 1:
        return None
    return _DTYPES.get(stored.dtypes[0])
