"""Files of the format GGUF, written as llama.cpp's ``convert_hf_to_gguf.py`` does, of tiny saved models."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

# Metadata of a model: the method of the writer, and the field of config.json.
_METADATA = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "layer_norm_rms_eps": "rms_norm_eps",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "key_length": "head_dim",
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def tensors_of(folder: Path, architecture: str) -> dict[str, NDArray[Any]]:
    """Return the tensors of a saved model by their names in GGUF, as the converter changes them, in float32."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    state: dict[str, NDArray[Any]] = {}
    experts: dict[str, dict[int, NDArray[Any]]] = defaultdict(dict)
    for name, value in load_file(folder / "model.safetensors").items():
        if match := _EXPERT.fullmatch(name):
            experts[f"{match[1]}.{match[3]}.weight"][int(match[2])] = value
        elif architecture == "gpt-oss" and "experts" in name:
            state |= _gpt_oss_experts(name, value)
        elif architecture == "llama" and re.search(r"[qk]_proj\.weight", name):
            state[name] = _neighbors(
                value, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            )
        else:
            state[name + ".weight" * name.endswith("sinks")] = value
    state |= {name: np.stack([rows[row] for row in sorted(rows)]) for name, rows in experts.items()}
    written = {}
    for name, value in state.items():
        stem, _, suffix = name.rpartition(".")
        assert names.get_name(stem) is not None, name
        written[f"{names.get_name(stem)}.{suffix}"] = np.ascontiguousarray(value.squeeze(), dtype=np.float32)
    return written


def _gpt_oss_experts(name: str, value: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return experts' parameters with gate and up apart, which alternate, and outputs before inputs."""
    stem, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
    rows = value if is_bias else value.swapaxes(1, 2)
    suffix = "bias" if is_bias else "weight"
    if stem.endswith("down_proj"):
        return {f"{stem}.{suffix}": rows}
    halves = {"gate": rows[:, 0::2], "up": rows[:, 1::2]}
    return {f"{stem.replace('gate_up', half)}.{suffix}": part for half, part in halves.items()}


def _neighbors(value: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return rows of queries or keys in the order of llama.cpp: what is rotated together stands together."""
    width = len(value) // heads
    order = [
        head * width + pair + half * (width // 2)
        for head in range(heads)
        for pair in range(width // 2)
        for half in (0, 1)
    ]
    return value[order]


def write(
    path: Path,
    folder: Path,
    architecture: str,
    kinds: dict[str, str] | str = "F32",
    *,
    tensors: dict[str, NDArray[Any]] | None = None,
    raw: Mapping[str, NDArray[np.uint8]] | None = None,
    tokens: bool = False,
    **metadata: Any,
) -> Path:
    """Write a GGUF file of a saved model.

    Args:
        path: of the file.
        folder: of the model.
        architecture: llama.cpp's name of it.
        kinds: of ggml, in which matrices are written: one, or by parts of their names. Routers and vectors are float32.
        tensors: to write instead of the model's own.
        raw: bytes of tensors that are written as they are, in the kind of each.
        tokens: whether the tokenizer is written too.
        metadata: values that differ from the model's, or that are added.
    """
    import gguf
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.setdefault("num_experts", config.get("num_local_experts"))
    writer = gguf.GGUFWriter(path, architecture)
    for key, field in _METADATA.items():
        value = metadata.get(key, config.get(field))
        if value is not None:
            getattr(writer, f"add_{key}")(value)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for key, value in metadata.items():
        if key not in _METADATA:
            add = writer.add_string if isinstance(value, str) else writer.add_uint32
            add(key.replace("__", "."), value)
    if tokens:
        _write_tokens(writer, folder)
    for name, value in (tensors_of(folder, architecture) if tensors is None else tensors).items():
        by_name = {"": kinds} if isinstance(kinds, str) else kinds
        kind = next((kind for part, kind in by_name.items() if part in name), "F32")
        if value.ndim < 2 or "ffn_gate_inp" in name or kind == "F32":
            writer.add_tensor(name, value)
        else:
            type_of = gguf.GGMLQuantizationType[kind]
            blocks = quantize(value, type_of) if name not in (raw or {}) else (raw or {})[name]
            writer.add_tensor(name, blocks, raw_dtype=type_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokens(writer: Any, folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("olmo")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<pad>", "<s>", "</s>") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in content["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)


def dequantized(values: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Return numbers as ggml's Q8_0 or Q4_0 holds them, by a loop over blocks of 32 of the bytes that are written.

    A block of Q8_0 is a scale (float16) and 32 signed bytes. One of Q4_0 is a scale and 16 bytes, whose low halves are
    the first 16 numbers and whose high halves the others, 8 more than what is multiplied with the scale.
    """
    import gguf
    from gguf.quants import quantize

    raw = quantize(values, gguf.GGMLQuantizationType[kind])
    size = {"Q8_0": 34, "Q4_0": 18}[kind]
    numbers: list[float] = []
    for block in raw.reshape(-1, size):
        scale = float(block[:2].copy().view(np.float16)[0])
        if kind == "Q8_0":
            numbers += [scale * float(byte) for byte in block[2:].view(np.int8)]
        else:
            numbers += [scale * (int(byte & 15) - 8) for byte in block[2:]]
            numbers += [scale * (int(byte >> 4) - 8) for byte in block[2:]]
    return np.array(numbers, dtype=np.float32).reshape(values.shape)
