"""The rows of routers of ``transformers``: from a loaded model, or only they from the files of a folder.

Axes: R rows, D width, N vectors of the embedding.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from torch import Tensor

from moeprobe.adapters.huggingface import heads, placing, routers
from moeprobe.adapters.huggingface.files import load_outline, name_of
from moeprobe.adapters.huggingface.outline import check_routers
from moeprobe.adapters.huggingface.quantized import method_of
from moeprobe.adapters.huggingface.settings import num_experts_of, split_settings, top_k_of
from moeprobe.adapters.router_rows import RowNames, as_array, name_rows, shapes_of, spread_slices, tensors_of
from moeprobe.routing.router_rows import Array, RouterRows, Start
from moeprobe.runtime.device import AUTO
from moeprobe.runtime.files import expand, is_folder

if TYPE_CHECKING:
    from moeprobe.adapters.huggingface import HuggingfaceAdapter


def rows_of_model(adapter: "HuggingfaceAdapter") -> dict[str, RouterRows | None]:
    """Return the rows of a loaded model's routers; None of one without a row for each expert."""
    weight = adapter.body.get_input_embeddings().weight  # type: ignore[operator]
    embedding = np.concatenate([as_array(weight[part]) for part in spread_slices(len(weight))])
    rows: dict[str, RouterRows | None] = {}
    for name, layer in adapter.layers.items():
        assert layer.reader is not None
        with placing.in_reach(layer.module):
            tensors = tensors_of(layer.module)
            names = name_rows(shapes_of(tensors), layer.reader.num_experts)
            rows[name] = None
            if names is not None:
                rows[name] = _make(names, tensors, adapter.body.config, layer.reader.top_k, embedding)
    return rows


def read_rows(reference: str) -> tuple[str, dict[str, RouterRows | None]] | None:
    """Return a model's name in tables and the rows of its routers, of whose files nothing else is read.

    None where the model has to be loaded: its weights are quantized or on the hub, or the files name them otherwise.
    """
    location, settings = split_settings(reference)
    folder = expand(location)
    if settings.gguf or not is_folder(folder):
        return None
    model, *_ = load_outline(location, dtype=AUTO, settings=settings, placement=None)
    num_experts = num_experts_of(model.config)
    if num_experts is None or method_of(model.config):
        return None
    body, layers = heads.text_part(model), check_routers(model)
    paths = {id(module): path for path, module in model.named_modules()}
    files = _Files(folder)
    embedding = body.get_input_embeddings()
    vectors = files.read(f"{paths[id(embedding)]}.weight", tuple(embedding.weight.shape), in_part=True)
    rows: dict[str, RouterRows | None] = {}
    for name, layer in zip(routers.short_names(list(layers)), layers.values(), strict=True):
        shapes = shapes_of(tensors_of(layer.module))
        names = name_rows(shapes, num_experts)
        if names is None:
            rows[name] = None
            continue
        tensors = {
            key: files.read(f"{paths[id(layer.module)]}.{key}", shapes[key])
            for key in (names.rows, names.bias)
            if key
        }
        if any(value is None for value in tensors.values()):
            return None
        rows[name] = _make(names, tensors, body.config, top_k_of(model.config), vectors)
    return name_of(location, settings, AUTO), rows


def _make(
    names: RowNames, tensors: Mapping[str, Any], config: Any, top_k: int | None, embedding: Array | None
) -> RouterRows:
    """Return the rows of a router by its tensors; ``config`` is of the model."""
    arrays = {key: as_array(value) if isinstance(value, Tensor) else value for key, value in tensors.items()}
    rows, text_config = arrays[names.rows], config.get_text_config()
    std = getattr(text_config, "initializer_range", None)
    # Where groups of experts are chosen first, an expert may lose to others in vain.
    is_grouped = (getattr(text_config, "n_group", None) or 1) > 1
    return RouterRows(
        rows=rows,
        start=Start("normal", float(std)) if std else Start.of_linear(rows.shape[1]),
        bias=arrays[names.bias].reshape(-1) if names.bias else None,
        is_bias_of_gates=names.is_bias_of_gates,
        top_k=None if is_grouped else top_k,
        is_choice_by_scores=not names.is_bias_of_gates,
        embedding=embedding if embedding is not None and embedding.shape[1] == rows.shape[1] else None,
    )


class _Files:
    """The safetensors of a folder, whose names may differ a little from the library's."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def read(self, name: str, shape: tuple[int, ...], *, in_part: bool = False) -> Array | None:
        """Return a tensor, or ``in_part`` some vectors spread over it; None where it is not there by one name."""
        stored = self._stored_name(name)
        if stored is None:
            return None
        with safe_open(self._files[stored], framework="pt") as file:
            tensor = file.get_slice(stored)
            if tuple(tensor.get_shape()) != shape:
                return None
            if in_part:
                return np.concatenate([as_array(tensor[part]) for part in spread_slices(shape[0])])
            return as_array(file.get_tensor(stored))

    def _stored_name(self, name: str) -> str | None:
        """Return the name in the files: the same, or one of the same block whose last two parts are the same."""
        if name in self._files:
            return name
        names = [candidate for candidate in self._files if _identity(candidate) == _identity(name)]
        return names[0] if len(names) == 1 else None


def _identity(name: str) -> tuple[list[str], list[str]]:
    """``model.layers.3.mlp.gate.weight`` -> its numbers and the last two parts."""
    return re.findall(r"\.(\d+)\.", name), name.split(".")[-2:]
