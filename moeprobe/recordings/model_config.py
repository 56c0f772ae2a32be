"""What a language model's ``config.json`` says of its MoE layers, and of its sparse-attention indexers.

The fields are named as in Hugging Face's configurations. An absent field is never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.runtime.files import read_json

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
# Fields by which other families say which layers are sparse.
_OTHERS = (
    "moe_layers", "moe_layers_enum", "interleave_moe_layer_step", "expert_layer_period", "expert_layer_offset",
    "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "num_dense_layers",
)  # fmt: skip
# Fields that count layers of multi-token prediction (MTP), which come after the hidden layers.
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_modules")
# Kinds of layers in ``mlp_layer_types``, and whether they are sparse.
_KINDS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}
# Fields that say of a choice of other experts than those of the highest logits, and what is harmless there.
_CHOICE: Mapping[str, Callable[[Any], bool]] = {
    "topk_method": lambda value: value in (None, "greedy"),
    "n_group": lambda value: value in (None, 0, 1),
    "use_expert_bias": lambda value: not value,
    "moe_router_enable_expert_bias": lambda value: not value,
}
# What a column of 16 bits holds, and more layers than any model has.
MOST_EXPERTS, MOST_LAYERS = 2**15 - 1, 10_000


@dataclass(frozen=True)
class MoeShape:
    """The MoE layers of a model.

    Attributes:
        num_layers: all hidden layers, sparse and dense.
        sparse: numbers of those with experts, in forward order.
        num_experts: E, routed experts of a layer.
        top_k: K, experts per token.
        hashed: numbers of the sparse layers that choose by the token's id alone.
        scoring: turns logits into gates, softmax or sigmoid; None where it is not said.
        choice_needs: the field of ``config.json`` (a bias, groups of experts) due to which other experts than the K
            with the highest logits may be chosen; None = there is none.
        mtp_layers: layers of multi-token prediction behind the hidden ones, which are none of these.
    """

    num_layers: int
    sparse: tuple[int, ...]
    num_experts: int
    top_k: int
    scoring: str | None = None
    hashed: tuple[int, ...] = ()
    mtp_layers: int = 0
    choice_needs: str | None = None

    @property
    def names(self) -> list[str]:
        """Name the layers with experts as ``hf:`` models do."""
        return [f"layers.{number}" for number in self.sparse]

    def mtp_cause(self, layers: int) -> str:
        """Return a clause that names layers of multi-token prediction, where these explain so many; else nothing."""
        # Some configurations of models with one such layer do not count it.
        number = self.mtp_layers or 1
        if layers != self.num_layers + number and (
            not self.mtp_layers or layers != len(self.sparse) + self.mtp_layers
        ):
            return ""
        behind = "the layer" if number == 1 else f"the {number} layers"
        alternative = "" if self.mtp_layers else ", or another model's config.json"
        return (
            f"known as {behind} of multi-token prediction (MTP), captured behind the model's own{alternative}; serve "
            "without speculative decoding, or cut the layers behind"
        )

    @property
    def dense(self) -> tuple[int, ...]:
        """Numbers of the hidden layers without experts."""
        return tuple(sorted(set(range(self.num_layers)) - set(self.sparse)))


def read_moe_shape(path: Path) -> MoeShape:
    """Read a ``config.json``; a model with several parts has its fields in ``text_config``.

    Raises:
        UserError: it cannot be read, lacks a field, or holds fields that contradict one another or are not known.
    """
    config = _read_config(path)
    layers = _whole_number(path, config, "num_hidden_layers", highest=MOST_LAYERS)
    experts = {
        _whole_number(path, config, name, highest=MOST_EXPERTS)
        for name in EXPERTS
        if config.get(name) is not None
    }
    if len(experts) != 1:
        verb = "says nothing of" if not experts else "contradicts itself in"
        raise UserError(f"{path} {verb} the number of experts ({', '.join(EXPERTS)}).")
    [num_experts] = experts
    top_k = _whole_number(path, config, "num_experts_per_tok", highest=num_experts)
    sparse = _sparse(path, config, layers)
    if not sparse:
        raise UserError(f"{path}: none of the {layers} layers has experts.")
    scoring = config.get("scoring_func")
    if scoring not in (None, "softmax", "sigmoid"):
        raise UserError(f"{path}: scoring_func is softmax or sigmoid; got {str(scoring)[:40]!r}.")
    kinds = config.get("mlp_layer_types") or []
    by_id = _whole_number(path, config, "num_hash_layers", least=0, highest=layers, default=0)
    hashed = tuple(number for number in sparse if (kinds[number] == "hash_moe" if kinds else number < by_id))
    mtp_layers = max(
        _whole_number(path, config, name, least=0, highest=MOST_LAYERS, default=0) for name in _MTP
    )
    needs = next((name for name, is_plain in _CHOICE.items() if not is_plain(config.get(name))), None)
    return MoeShape(layers, sparse, num_experts, top_k, scoring, hashed, mtp_layers, needs)


# Bytes of a parameter by ``torch_dtype``, which newer files call ``dtype``.
_PARAMETER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
# Matrices of an expert: up, gate and down.
_EXPERT_MATRICES = 3


def read_expert_bytes(path: Path) -> int:
    """Return the bytes of one routed expert's three matrices in a ``config.json``.

    Raises:
        UserError: it cannot be read, lacks a field, or is of quantized weights, whose bytes it does not say.
    """
    config = _read_config(path)
    if config.get("quantization_config") is not None:
        raise UserError(
            f"{path} is of quantized weights, and does not say how many bytes an expert has; use "
            f"{option('expert_bytes', '9.4MB')}."
        )
    kind = config.get("torch_dtype") or config.get("dtype")
    if kind not in _PARAMETER_BYTES:
        what = "names no type of the weights (dtype)" if kind is None else f"has weights of type {kind!r}"
        raise UserError(
            f"{path} {what}, so the bytes of an expert are not known; use {option('expert_bytes', '9.4MB')}."
        )
    # Families without a width of their own for experts have that of dense layers.
    name = next(
        (field for field in ("moe_intermediate_size", "intermediate_size") if config.get(field) is not None),
        "moe_intermediate_size",
    )
    sizes = [_whole_number(path, config, field, highest=2**31 - 1) for field in ("hidden_size", name)]
    return _EXPERT_MATRICES * sizes[0] * sizes[1] * _PARAMETER_BYTES[str(kind)]


@dataclass(frozen=True)
class IndexerShape:
    """The indexers of a model with sparse attention.

    Attributes:
        layers: numbers of the hidden layers whose attention reads selected keys.
        computing: of these, the layers that select themselves; the others reuse the selection of one before.
        top_k: K, keys that an indexer selects.
        tokens_per_key: tokens behind a key: 1, or the ratio of compression.
    """

    layers: tuple[int, ...]
    computing: tuple[int, ...]
    top_k: int
    tokens_per_key: int = 1


# The ratio of compressed layers that have an indexer (DeepSeek-V4); the others read all of their keys.
_INDEXED_RATIO = 4


def read_indexer_shape(path: Path) -> IndexerShape:
    """Read the indexers of a ``config.json``.

    Raises:
        UserError: it cannot be read, or is of no model with an indexer.
    """
    config = _read_config(path)
    if config.get("index_topk") is None:
        raise UserError(
            f"{path} has no index_topk: the model has no sparse-attention indexer. DeepSeek-V3.2, DeepSeek-V4 and "
            "GLM-5 have one."
        )
    top_k = _whole_number(path, config, "index_topk", highest=2**31 - 1)
    layers = _whole_number(path, config, "num_hidden_layers", highest=MOST_LAYERS)
    ratios = config.get("compress_ratios") or config.get("compress_rates")
    if ratios is not None:
        if not isinstance(ratios, list) or len(ratios) < layers:
            raise UserError(f"{path}: compress_ratios takes a number for each of {layers} layers.")
        compressed = tuple(number for number in range(layers) if ratios[number] == _INDEXED_RATIO)
        if not compressed:
            raise UserError(
                f"{path}: none of compress_ratios is {_INDEXED_RATIO}, so no layer has an indexer."
            )
        return IndexerShape(compressed, compressed, top_k, _INDEXED_RATIO)
    hidden = tuple(range(layers))
    return IndexerShape(hidden, _computing(path, config, layers), top_k)


def _computing(path: Path, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return which layers select keys themselves."""
    pattern = config.get("index_topk_pattern")
    if isinstance(pattern, str):
        return tuple(number for number in range(layers) if pattern[number : number + 1] != "S")
    step = _whole_number(path, config, "index_topk_freq", highest=MOST_LAYERS, default=1)
    first = _whole_number(path, config, "index_skip_topk_offset", least=0, highest=MOST_LAYERS, default=2)
    return tuple(number for number in range(layers) if max(number - first + 1, 0) % step == 0)


def _read_config(path: Path) -> Mapping[str, Any]:
    """Return the fields of the language model."""
    config = read_json(path)
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        raise UserError(f"{path} is no configuration of a model: expected a JSON object.")
    return config


def _sparse(path: Path, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return which layers have experts; all where no field names dense ones."""
    if (kinds := config.get("mlp_layer_types")) is not None:
        is_valid = (
            isinstance(kinds, list) and len(kinds) == layers and all(str(kind) in _KINDS for kind in kinds)
        )
        if not is_valid:
            raise UserError(
                f"{path}: mlp_layer_types takes one of {', '.join(_KINDS)} for each of {layers} layers."
            )
        return tuple(number for number, kind in enumerate(kinds) if _KINDS[kind])
    for name in _OTHERS:
        if config.get(name) is not None:
            raise UserError(
                f"{path}: which layers have experts is said by {name}, which is not known here; say it by "
                "mlp_layer_types (dense or sparse for each layer) in a copy of the file."
            )
    first = _whole_number(path, config, "first_k_dense_replace", least=0, highest=layers, default=0)
    step = _whole_number(path, config, "decoder_sparse_step", highest=layers, default=1)
    only = config.get("mlp_only_layers") or []
    every = config.get("moe_layer_freq")
    if not isinstance(only, list) or not all(type(layer) is int and 0 <= layer < layers for layer in only):
        raise UserError(f"{path}: mlp_only_layers takes numbers of layers from 0 to {layers - 1}.")
    if isinstance(every, list):
        if len(every) != layers or not all(entry in (0, 1) for entry in every):
            raise UserError(f"{path}: moe_layer_freq takes a number, or 0 or 1 for each of {layers} layers.")
        is_moe = [bool(entry) for entry in every]
    else:
        freq = _whole_number(path, config, "moe_layer_freq", highest=layers, default=1)
        is_moe = [number % freq == 0 for number in range(layers)]
    return tuple(
        number
        for number in range(layers)
        if is_moe[number] and number >= first and (number + 1) % step == 0 and number not in only
    )


def _whole_number(
    path: Path,
    config: Mapping[str, Any],
    name: str,
    *,
    highest: int,
    least: int = 1,
    default: int | None = None,
) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise UserError(f"{path} lacks {name}; give the config.json of the model that was served.")
    if type(value) is not int or not least <= value <= highest:
        raise UserError(f"{path}: {name} takes a whole number from {least} to {highest:,}; got {value!r}.")
    return value
