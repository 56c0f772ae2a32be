"""Models whose safetensors are quantized (``quantization_config`` of config.json), which are opened dequantized.

A model in memory has plain weights, whatever its files hold, so every probe works on it, on any device. Each number is
what the format stands for; activations are not quantized, even where a server would. A model that cannot be dequantized
here is refused before weights are read, unless only they show it.
"""

import importlib.util
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from moeprobe.adapters.huggingface import packed_weights
from moeprobe.adapters.huggingface.gguf_files import GgufFile
from moeprobe.adapters.huggingface.weight_parts import PartTypes, part_of
from moeprobe.errors import UserError
from moeprobe.routing.parts import is_quantized
from moeprobe.runtime.characters import quote
from moeprobe.runtime.extras import is_older, outdated_package

# Methods that transformers dequantizes while it reads weights, those that are dequantized once a model is in memory,
# and the package that each needs.
_WHILE_LOADING = {
    "fp8": "accelerate",
    "mxfp8": "accelerate",
    "mxfp4": "accelerate",
    "compressed-tensors": "compressed-tensors",
}
_AFTER_LOADING = {"bitsandbytes": "bitsandbytes", "torchao": "torchao"}
_PACKAGES = _WHILE_LOADING | _AFTER_LOADING
# Before, transformers rounds experts in FP8 to bfloat16 (5.20), or leaves shapes of packed matrices among parameters.
_DECOMPRESSING = "5.23"
_ALONE = re.compile(r"\.experts\.\d+\..*\.(absmax|SCB)")
# Tensors that belong to a quantized one: scales, zero points, shapes, tables.
_AUXILIARY = re.compile(
    r".*(_bias|_scale(_inv|s)?|\.(q?scales?|qzeros|g_idx|bias|absmax|quant_map|nested_\w+|SCB|weight_format)|_zero_point|"
    r"_global_scale|_shape|input_scale|quant_state\..*)"
)
# Bits of a number that torchao holds in a byte of its own.
_NOTED = re.compile(r'"target_dtype": \{[^}]*"int(\d)"')
_BITS = {"I8": 8, "U8": 8, "I16": 16, "I32": 32, "I64": 64}


def method_of(config: Any) -> str:
    """Return how a model is quantized, e.g. "fp8"; empty where it is not."""
    settings = _settings(config)
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    method = settings.get("quant_method") or ""
    # A member of an enumeration where the library has read it.
    return str(getattr(method, "value", method))


def _settings(config: Any) -> Mapping[str, Any]:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        settings = getattr(config.get_text_config(), "quantization_config", None)
    if settings is None:
        return {}
    return settings if isinstance(settings, Mapping) else settings.to_dict()


def prepare_dequantization(config: Any, folder: Path | None) -> None:
    """Let a model's weights be dequantized when they are read, by what its configuration says.

    Args:
        config: of the model, which is changed.
        folder: with its files; None where they are on the hub.

    Raises:
        UserError: they cannot be dequantized here.
    """
    method = method_of(config)
    if not method:
        return
    if method in packed_weights.METHODS:
        packed_weights.check_packed(method, _settings(config))
        return
    package = _PACKAGES.get(method)
    if package is None:
        raise UserError(
            f"Its weights are quantized by {quote(method)}, which moeprobe does not read: it reads GGUF files, "
            f"{', '.join(sorted((*_PACKAGES, *packed_weights.METHODS)))}; use another form of the model."
        )
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise UserError(
            f"Its weights are quantized by {method}, which needs the package {package}: pip install {package}."
        )
    if method == "compressed-tensors":
        _check_compressed(_settings(config))
        if is_older("transformers", _DECOMPRESSING):
            raise outdated_package(
                "To dequantize compressed-tensors, moeprobe", "transformers", _DECOMPRESSING
            )
    if method in _AFTER_LOADING and folder is not None:
        single = next((name for name, *_ in headers_of(folder) if _ALONE.search(name)), None)
        if single is not None:
            raise UserError(
                f"Its experts are quantized one by one ({single}), which transformers 5 cannot stack; quantize the "
                "model again with transformers 5."
            )
    if method not in _AFTER_LOADING:
        config.quantization_config = {**_settings(config), "dequantize": True}


def state_dict(config: Any, folder: Path | None, dtype: torch.dtype) -> dict[str, torch.Tensor] | None:
    """Return a model's tensors, where moeprobe dequantizes them itself; None where the library reads them.

    Args:
        config: of the model, which is changed.
        folder: with its files; None where they are on the hub.
        dtype: what they are converted to.

    Raises:
        UserError: they are on the hub, or incomplete.
    """
    method, settings = method_of(config), _settings(config)
    if method not in packed_weights.METHODS:
        return None
    if folder is None:
        raise UserError(
            f"Weights of {method} are read from a folder on this machine: download the model first."
        )
    state = packed_weights.unpacked_state(folder, method, settings, dtype)
    del config.quantization_config
    return state


def _check_compressed(settings: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where transformers (5.23) does not dequantize compressed-tensors, or not rightly.

    It takes one scheme for experts and one for all other layers, and drops the zero points of experts.
    """
    of_experts, of_others = _groups(settings)
    if len(of_experts) > 1 or len(of_others) > 1:
        raise UserError(
            f"Its layers are quantized by {len(of_experts) + len(of_others)} schemes of compressed-tensors, and "
            "transformers dequantizes one for experts and one for other layers; use another form of the model."
        )
    group = (of_experts or of_others or [{}])[0]
    weights = group.get("weights") or {}
    form = group.get("format") or settings.get("format")
    is_fp8 = weights.get("type") == "float" and weights.get("num_bits") == 8
    if is_fp8 and weights.get("strategy") in ("channel", "tensor"):
        return
    if form == "pack-quantized" and weights.get("symmetric", True):
        return
    scheme = f"{form}, {weights.get('type')}{weights.get('num_bits')}, {weights.get('strategy')}"
    raise UserError(
        f"Its experts are in a format of compressed-tensors ({scheme}) that transformers does not dequantize: it does "
        "so with FP8 per channel or tensor, and symmetric packed integers; use another form of the model."
    )


def _groups(settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the schemes of compressed-tensors that name experts, and the others."""
    groups = list((settings.get("config_groups") or {}).values())
    of_experts = [
        group
        for group in groups
        if any(target.startswith("re:") and "experts" in target for target in group.get("targets", ()))
    ]
    return of_experts, [group for group in groups if group not in of_experts]


def dequantize(model: Any) -> Any:
    """Return a model with plain weights, where they were not dequantized while they were read.

    Raises:
        UserError: some weights stay quantized.
    """
    method = method_of(model.config)
    if method == "bitsandbytes":
        _check_rows(model)
        model = model.dequantize()
    elif method == "torchao":
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if is_quantized(parameter):
                    module.register_parameter(name, nn.Parameter(parameter.dequantize(), requires_grad=False))
        del model.config.quantization_config, model.hf_quantizer
    remaining = next((name for name, parameter in model.named_parameters() if is_quantized(parameter)), None)
    if remaining is not None:
        raise UserError(f"Its parameter {remaining} is still quantized ({method or 'of an unknown method'}).")
    return model


def _check_rows(model: Any) -> None:
    """Raise ``UserError`` where bitsandbytes dequantizes wrongly.

    Its code for CPUs (seen in 0.50.2) lets each row begin a block, and blocks go over the ends of rows.
    """
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None and parameter.device.type == "cpu" and state.shape[-1] % state.blocksize:
            raise UserError(
                f"{name} has rows of {state.shape[-1]} numbers in blocks of {state.blocksize}, which bitsandbytes "
                "dequantizes wrongly on a CPU; open the model where there is a GPU."
            )


def describe_form(config: Any, folder: Path | None, gguf: GgufFile | None) -> dict[str, Any]:
    """Return how a model's files hold its weights, part by part, from their headers; empty of plain safetensors.

    ``dequantized`` says whether the model in memory has other numbers than its files.

    Args:
        config: of the model, before it was loaded.
        folder: with its files; None where they are on the hub.
        gguf: its file, if it is one of those.
    """
    if gguf is not None:
        return {
            "quantization": "gguf",
            "number_formats": gguf.types.plain(),
            "dequantized": gguf.is_quantized,
        }
    method = method_of(config)
    if not method:
        return {}
    return {
        "quantization": method,
        "number_formats": None if folder is None else _types(folder, method, _settings(config)).plain(),
        "dequantized": True,
    }


def headers_of(folder: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yield the name, number format and length of each tensor in a folder's safetensors, and torchao's note of it."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(name)
                note = notes.get(name.replace("._weight_qdata", ".weight"), "")
                yield name, part.get_dtype(), math.prod(part.get_shape()), note


def _types(folder: Path, method: str, settings: Mapping[str, Any]) -> PartTypes:
    types = PartTypes()
    of_experts, of_others = _groups(settings)
    for name, dtype, length, note in headers_of(folder):
        part = part_of(name)
        if _AUXILIARY.fullmatch(name) or "norm" in name.rpartition(".")[0]:
            continue
        if dtype not in _BITS:
            types.add(part, dtype, length)
            continue
        schemes = of_experts if part == "experts" and of_experts else of_others
        label, bits = _label(method, settings, schemes[0] if schemes else {}, dtype)
        if noted := _NOTED.search(note):
            label, bits = f"int{noted[1]}", _BITS[dtype]
        types.add(part, label, length * _BITS[dtype] // bits)
    return types


def _label(
    method: str, settings: Mapping[str, Any], scheme: Mapping[str, Any], dtype: str
) -> tuple[str, int]:
    """Return what packed numbers are, and how many bits each has."""
    if method == "mxfp4":
        return "MXFP4", 4
    if method == "bitsandbytes" and settings.get("load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", "fp4")).upper(), 4
    if method == "compressed-tensors":
        weights = scheme.get("weights") or {}
        bits = int(weights.get("num_bits") or _BITS[dtype])
        return f"{weights.get('type', 'int')}{bits}", bits
    if method in ("gptq", "awq"):
        bits = int(settings.get("bits") or settings.get("w_bit") or 4)
        return f"int{bits}", bits
    return ("int8", 8) if dtype == "I8" else ("int4", 4)
