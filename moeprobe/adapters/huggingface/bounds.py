"""What a model's folder may say: weights in the folder itself, and no more layers and experts than there can be.

Axes: E experts, K choices.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.recordings.model_config import EXPERTS, MOST_EXPERTS, MOST_LAYERS
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import is_there, read_json

# How families of the library call their numbers of layers.
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
_TOP_K = "num_experts_per_tok"
_ADAPTER = "adapter_config.json"
# What weights, and an index of weights, are called; the hash of a folder is of these among others.
_HASHED = (".safetensors", ".json")


def check_folder(folder: Path) -> None:
    """Raise ``UserError`` where the weights of a folder lie elsewhere: their hash would be of other files."""
    if is_there(folder / _ADAPTER):
        raise UserError(
            f"{folder} holds an adapter ({_ADAPTER}) of a model that lies elsewhere. Merge the two and save the whole."
        )
    for path, name in _names(folder):
        if not isinstance(name, str) or "/" in name or "\\" in name or not name.endswith(_HASHED):
            raise UserError(
                f"{path} names weights that are not in its folder: {quoted(str(name))}. Put all safetensors into it."
            )


def _names(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the files of weights that a folder names, and where it names them."""
    for path in sorted(folder.glob("*.safetensors.index.json")):
        content = read_json(path)
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise UserError(f"{path} is no index of weights: it lacks weight_map.")
        yield from ((path, name) for name in names.values())
    path = folder / "config.json"
    content = read_json(path) if is_there(path) else None
    if isinstance(content, dict) and content.get("transformers_weights") is not None:
        yield path, content["transformers_weights"]


def check_sizes(config: Any, *, tensors: int | None) -> None:
    """Raise ``UserError`` where a model would be built of more than there can be.

    Args:
        config: of the model.
        tensors: in the folder; each layer has at least one. None = not known.
    """
    max_layers = MOST_LAYERS if tensors is None else min(MOST_LAYERS, tensors)
    for part in {id(section): section for section in (config, config.get_text_config())}.values():
        for name in _LAYERS:
            _check(name, getattr(part, name, None), maximum=max_layers, least=0)
        experts = [name for name in EXPERTS if getattr(part, name, None) is not None]
        for name in experts:
            _check(name, getattr(part, name), maximum=MOST_EXPERTS, least=0)
        if experts:
            _check(_TOP_K, getattr(part, _TOP_K, None), maximum=getattr(part, experts[0]), least=1)


def _check(name: str, value: Any, *, maximum: int, least: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= maximum):
        raise UserError(
            f"In config.json, {name} takes a whole number from {least} to {maximum:,}; got {quoted(str(value))}."
        )


def count_tensors(folder: Path) -> int | None:
    """Return how many tensors the weights of a folder hold; None where it has none in safetensors."""
    from safetensors import safe_open

    files = list(folder.glob("*.safetensors"))
    if not files:
        return None
    count = 0
    for path in files:
        with safe_open(path, framework="pt") as file:
            count += len(file.keys())
    return count
