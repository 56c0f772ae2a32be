"""Models in a file of llama.cpp's format GGUF, for families whose tensors moeprobe knows how to bring back.

The library ``transformers`` has a reader of its own, which does not know OLMoE, and takes widths of experts that a file
does not share with the first model of its family. So tensors are read here: they are named by the package ``gguf``,
dequantized by it, one after the other, and handed to the library as a state dict. What llama.cpp's converter
(``convert_hf_to_gguf.py``) did to a family's values is undone: experts are stacked there, gate and up projections
apart, and axes of length one are left out. A file that lacks a tensor of the model, or has one more, is refused.

Axes: E experts, I inner width, D width.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.huggingface.outline import Stored
from moeprobe.adapters.huggingface.weight_parts import PartTypes, part_of
from moeprobe.errors import UserError
from moeprobe.runtime.characters import quote
from moeprobe.runtime.extras import missing_package, outdated_package
from moeprobe.runtime.files import expand, is_there, open_regular

# Metadata, after the architecture's name, and what most families call it in a configuration.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.clamp_kqv": "clip_qkv",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_TOKENS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
_EXPERTS = re.compile(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?")
# Tables of rotations, which follow from the configuration.
_DERIVED = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight")
# Values of an array of the metadata that are read; the longest that is needed has one for each layer.
_LONGEST_ARRAY = 1024
# The first release of the package that has names for the tensors of all families.
_NAMING = "0.18"
_FLOATS = {"F32", "F16", "BF16"}


@dataclass(frozen=True)
class GgufFamily:
    """How a family's GGUF is read.

    Attributes:
        model_type: of the configuration.
        splits: how its tokenizers split texts (``tokenizer.ggml.pre``), which ``transformers`` does likewise.
        constants: fields of its configuration that llama.cpp's code holds.
        renames: what it calls fields of ``_FIELDS``.
        needs_config: whether metadata leave out something of its configuration.
        has_paired_rows: whether rows of queries and keys are in the order of llama.cpp's rotation.
        has_interleaved_experts: whether gate and up projections alternate, and inputs come before outputs.
    """

    model_type: str
    splits: tuple[str, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    renames: dict[str, str] = field(default_factory=dict)
    needs_config: bool = False
    has_paired_rows: bool = False
    has_interleaved_experts: bool = False


# By llama.cpp's name of the architecture.
FAMILIES = {
    "olmoe": GgufFamily("olmoe", ("olmo", "gpt-2")),
    "qwen2moe": GgufFamily("qwen2_moe", ("qwen2",)),
    # llama.cpp always divides weights by their sum.
    "qwen3moe": GgufFamily("qwen3_moe", ("qwen2",), {"norm_topk_prob": True}),
    "gpt-oss": GgufFamily("gpt_oss", ("gpt-4o",), needs_config=True, has_interleaved_experts=True),
    # Mixtral is a llama with experts.
    "llama": GgufFamily("mixtral", (), {}, {"expert_count": "num_local_experts"}, has_paired_rows=True),
}


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file whose header was read.

    Attributes:
        path: of the file.
        reader: of the package ``gguf``; no tensor is read before it is used.
        family: how it is read.
    """

    path: Path
    reader: Any
    family: GgufFamily

    @classmethod
    def find(cls, folder: Path, name: str) -> "GgufFile":
        """Open the file of this name, in a folder or by its path.

        Raises:
            UserError: there is none, it is damaged, one part of several, of a family that is not read, or the package
                is too old for its family.
        """
        path = locate(folder, name)
        open_regular(path).close()
        try:
            reader = _reader_class()(path)
            architecture = _value(reader, "general.architecture")
        except UserError:
            raise
        except Exception as error:  # it trusts what a file says of its lengths
            raise UserError(
                f"{path} is no GGUF file, or is truncated or damaged ({type(error).__name__})."
            ) from None
        if int(_value(reader, "split.count") or 1) > 1:
            raise UserError(
                f"{path.name} is one part of several; merge them with llama-gguf-split, and name the whole."
            )
        family = FAMILIES.get(str(architecture))
        is_dense_llama = architecture == "llama" and not _value(reader, "llama.expert_count")
        if family is None or is_dense_llama:
            kind = "llama without experts" if is_dense_llama else quote(str(architecture))
            raise UserError(
                f"{path.name} is of the architecture {kind}, and moeprobe reads GGUF files of "
                f"{', '.join(sorted(FAMILIES))} (llama with experts: Mixtral); use the model's safetensors."
            )
        if not _has_names(architecture):
            raise outdated_package(f"A GGUF file of {architecture}", "gguf", _NAMING)
        return cls(path, reader, family)

    @cached_property
    def stored(self) -> Stored:
        """What the header says."""
        sizes = [int(tensor.n_elements) for tensor in self.reader.tensors]
        return Stored(len(sizes), sum(sizes), (), self.path.stat().st_size)

    @property
    def types(self) -> PartTypes:
        """Number formats by part of the model, as ggml calls them."""
        types = PartTypes()
        for tensor in self.reader.tensors:
            # Vectors, and biases that are stacked, stay as they are in every file.
            if len(tensor.shape) > 1 and not tensor.name.endswith(".bias"):
                types.add(part_of(tensor.name), tensor.tensor_type.name, int(tensor.n_elements))
        return types

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is anything else than numbers with a fraction."""
        return not {tensor.tensor_type.name for tensor in self.reader.tensors} <= _FLOATS

    def tokenizer(self, transformers: Any) -> Any:
        """Return the file's own tokenizer; None where it has none, or one that would split texts in another way."""
        split, kind = (_value(self.reader, f"tokenizer.ggml.{key}") for key in ("pre", "model"))
        if split not in self.family.splits and kind != "llama":
            return None
        # Not of AutoTokenizer, which would read a configuration of the file, and does not know OLMoE.
        return transformers.PreTrainedTokenizerFast.from_pretrained(
            str(self.path.parent), gguf_file=self.path.name, local_files_only=True
        )

    def config(self, transformers: Any, folder: Path) -> Any:
        """Return the model's configuration: config.json of its folder, or else what the metadata say.

        Raises:
            UserError: the two are of different models, or the metadata leave something out.
        """
        if is_there(folder / "config.json"):
            config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            if config.model_type != self.family.model_type:
                raise UserError(
                    f"{self.path.name} holds a model of type {self.family.model_type!r}, and the config.json beside it "
                    f"is of {config.model_type!r}; put the file into a folder of its own."
                )
            # Of the safetensors beside it.
            if getattr(config, "quantization_config", None) is not None:
                del config.quantization_config
        elif self.family.needs_config or self._get("rope.scaling.type") not in (None, "none"):
            raise UserError(
                f"The metadata of {self.path.name} do not say how its positions are scaled; put the model's "
                "config.json beside it."
            )
        else:
            config = transformers.AutoConfig.for_model(self.family.model_type, **self._fields())
        # Exact for each of its formats, which are mixed: routers are float32 in files of 16 bits, too.
        config.dtype = torch.float32
        return config

    def _get(self, key: str) -> Any:
        """Return a value of the metadata of its architecture; None where it has none."""
        return _value(self.reader, f"{_value(self.reader, 'general.architecture')}.{key}")

    def _fields(self) -> dict[str, Any]:
        fields = {
            self.family.renames.get(key, name): value
            for key, name in _FIELDS.items()
            if (value := self._get(key)) is not None
        }
        ids = {
            name: value
            for key, name in _TOKENS.items()
            if (value := _value(self.reader, f"tokenizer.ggml.{key}")) is not None
        }
        shapes = {tensor.name: tensor.shape for tensor in self.reader.tensors}
        vocabulary = (
            {"vocab_size": int(shapes["token_embd.weight"][-1])} if "token_embd.weight" in shapes else {}
        )
        rotation = {"rope_theta": self._get("rope.freq_base") or 1e4, "rope_type": "default"}
        tied = {"tie_word_embeddings": "output.weight" not in shapes}
        return {"rope_parameters": rotation} | vocabulary | tied | ids | fields | self.family.constants

    def state_dict(self, outline: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return a model's parameters by their names, dequantized.

        Args:
            outline: the model without memory.
            dtype: what they are converted to.

        Raises:
            UserError: the file lacks a tensor of the model, has another one, or one of another shape.
        """
        sources = dict(self._sources(outline))
        tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        sought = {name for names in sources.values() for name in names}
        unknown = sorted(name for name in tensors.keys() - sought if not _DERIVED.fullmatch(name))
        # An output that is not there is the embedding's own matrix.
        missing = sorted(sought - tensors.keys() - {"output.weight"})
        if unknown or missing:
            raise UserError(
                f"{self.path.name} lacks {len(missing)} tensors of a model of type {self.family.model_type!r} and has "
                f"{len(unknown)} that it does not have, e.g. {(missing or unknown)[0]}; convert the model again with a "
                "current llama.cpp."
            )
        state = outline.state_dict()
        return {
            name: self._read(
                name, [tensors[source] for source in names], state[name].shape, outline.config
            ).to(dtype)
            for name, names in sources.items()
            if all(source in tensors for source in names)
        }

    def _sources(self, outline: Any) -> Iterator[tuple[str, list[str]]]:
        """Yield the names of a model's parameters, and of the tensors that each is made of."""
        import gguf

        architecture = _value(self.reader, "general.architecture")
        kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
        names = gguf.get_tensor_name_map(kind, outline.config.num_hidden_layers)
        for name in outline.state_dict():
            if match := _EXPERTS.fullmatch(name):
                stems = [f"{match[1]}.{half}_proj" for half in match[2].split("_")]
                suffix = "bias" if match[3] else "weight"
            elif name.endswith((".weight", ".bias")):
                stem, _, suffix = name.rpartition(".")
                stems = [stem]
            else:
                stems, suffix = [name], "weight"
            yield name, [f"{names.get_name(stem)}.{suffix}" for stem in stems]

    def _read(self, name: str, tensors: list[Any], shape: torch.Size, config: Any) -> Tensor:
        """Return a parameter of this shape."""
        from gguf import dequantize

        # Numbers that are not quantized are a view of the file, which cannot be written to.
        values = [
            torch.from_numpy(np.require(dequantize(tensor.data, tensor.tensor_type), requirements="W"))
            for tensor in tensors
        ]
        if self.family.has_interleaved_experts and (match := _EXPERTS.fullmatch(name)):
            value = values[0] if len(values) == 1 else torch.stack(values, 2).flatten(1, 2)
            value = value if match[3] else value.mT.contiguous()
        else:
            value = values[0] if len(values) == 1 else torch.cat(values, 1)
        if self.family.has_paired_rows and (heads := _heads(name, config)):
            # llama.cpp rotates neighbors, and transformers halves: the converter's ``permute``, undone.
            value = value.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        if [length for length in value.shape if length > 1] != [length for length in shape if length > 1]:
            raise UserError(
                f"In {self.path.name}, {tensors[0].name} has the shape {tuple(value.shape)}, and {name} of the model "
                f"has {tuple(shape)}; put the config.json of this very model beside it."
            )
        return value.reshape(shape)


def _heads(name: str, config: Any) -> int:
    """Return how many heads the rows of a projection of queries or keys have; 0 of other parameters."""
    if name.endswith("q_proj.weight"):
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if name.endswith("k_proj.weight") else 0


def _has_names(architecture: str) -> bool:
    """Whether the package names the tensors of an architecture."""
    import gguf

    return architecture in gguf.MODEL_ARCH_NAMES.values()


def locate(folder: Path, name: str) -> Path:
    """Return the path of a file that is named by its place in a folder, or by its path.

    Raises:
        UserError: there is none.
    """
    inside, path = folder / name, expand(name)
    if is_there(inside):
        return inside
    if is_there(path):
        return path
    raise UserError(f"There is no file {quote(name)} in {folder}, nor at this path.")


def _reader_class() -> Any:
    """Return the reader of the package ``gguf``, made quick: it would take seconds for a vocabulary.

    Raises:
        UserError: the package is missing.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        raise missing_package("A GGUF file", "gguf", "hf") from None

    class QuickReader(gguf.GGUFReader):
        """Passes over long arrays of the metadata, such as tokens and merges."""

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            content: Any = self.data
            kind, length = struct.unpack_from("<IQ", content, orig_offs)
            if length <= _LONGEST_ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            end = orig_offs + struct.calcsize("<IQ")
            if kind == gguf.GGUFValueType.STRING:
                for _ in range(length):
                    end += 8 + struct.unpack_from("<Q", content, end)[0]
            else:
                end += length * np.dtype(self.gguf_scalar_to_np[gguf.GGUFValueType(kind)]).itemsize
            return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]

    return QuickReader


def _value(reader: Any, key: str) -> Any:
    """Return a value of a file's metadata; None where it has none."""
    entry = reader.get_field(key)
    return None if entry is None else entry.contents()
