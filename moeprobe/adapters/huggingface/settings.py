"""Settings that follow the name of a model, ``hf:MODEL,top_k=4``: one model served in two ways can be compared.

``hf:DIR,gguf=FILE``, or ``hf:DIR/FILE.gguf``, takes the weights from a GGUF file (see ``gguf_files``). Precision and
kernels are settings too: ``hf:MODEL,dtype=bfloat16``, ``hf:MODEL,experts_implementation=eager``.

The number of experts per token is set in the configuration before the model is built, so every router is made with it.
After opening, each layer is asked whether it follows (``Settings.check``).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprobe.errors import UserError
from moeprobe.runtime.characters import quote
from moeprobe.runtime.device import AUTO, DTYPES
from moeprobe.runtime.schema import split_assignments

if TYPE_CHECKING:
    from moeprobe.adapters.huggingface.routers import RouterLayer

TOP_K, ALL, DTYPE, GGUF = "top_k", "all", "dtype", "gguf"
_DTYPES = tuple(name for name in DTYPES if name != AUTO)
# The library's own kernels, by its names of the arguments. Others may be downloaded code.
KERNELS = {
    "attn_implementation": ("eager", "sdpa"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}
# How families call the number of experts per token, and of experts.
_TOP_K_NAMES = (
    "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts",
)  # fmt: skip
_EXPERTS_NAMES = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
# Sections of a configuration that may hold them.
_SECTIONS = ("ffn_config",)


@dataclass(frozen=True)
class Settings:
    """Settings of a model, empty = as the model has it.

    Attributes:
        top_k: experts per token as written, a number or "all".
        dtype: precision of the weights.
        attn_implementation: kernels of attention.
        experts_implementation: kernels of experts.
        gguf: the GGUF file of its weights, in its folder or by its path; empty = its safetensors.
    """

    top_k: str = ""
    dtype: str = ""
    attn_implementation: str = ""
    experts_implementation: str = ""
    gguf: str = ""

    @property
    def suffix(self) -> str:
        """What follows the model's name in tables."""
        return "".join(f",{name}={value}" for name, value in self.plain().items())

    @property
    def kernels(self) -> dict[str, str | None]:
        """Arguments for loading a model: None = the library's own choice, whatever config.json says."""
        return {name: getattr(self, name) or None for name in KERNELS}

    def plain(self) -> dict[str, Any]:
        """Return the settings by name, those that were set; the file of the weights is not one of them."""
        values = {name: value for name, value in vars(self).items() if value and name != GGUF}
        return values if self.top_k in ("", ALL) else values | {TOP_K: int(self.top_k)}

    def precision(self, dtype: str) -> str:
        """Return the precision to load a model in, where ``dtype`` is the run's.

        Raises:
            UserError: both are set, and differ.
        """
        if self.dtype and dtype not in (AUTO, self.dtype):
            raise UserError(
                f"{DTYPE}={self.dtype} follows the model, and the run asks for {dtype}; leave one out."
            )
        return self.dtype or dtype

    def check(self, layers: Mapping[str, "RouterLayer"]) -> None:
        """Raise ``UserError`` unless every layer of an opened model gives tokens as many experts as was set."""
        if not self.top_k:
            return
        # The configuration may say one number and the code use another.
        for name, layer in layers.items():
            reader = layer.reader
            assert reader is not None
            if str(reader.top_k) != self.top_k and (self.top_k, reader.top_k) != (ALL, reader.num_experts):
                raise UserError(
                    f"{name} ({type(layer.module).__name__}) gives each token {reader.top_k} experts whatever its "
                    f"configuration says; leave {TOP_K}={self.top_k} out."
                )

    def apply(self, config: Any) -> None:
        """Set the number of experts per token in a configuration.

        Raises:
            UserError: it has no such number, or fewer experts.
        """
        if not self.top_k:
            return
        section, name = next(_top_k_fields(config), (None, ""))
        num_experts = None if section is None else _experts_in(section)
        if section is None or num_experts is None:
            raise UserError(
                f"A model of type {config.model_type!r} does not say in config.json how many experts a token gets, so "
                f"leave {TOP_K}={self.top_k} out."
            )
        top_k = num_experts if self.top_k == ALL else int(self.top_k)
        if not 1 <= top_k <= num_experts:
            raise UserError(
                f"{TOP_K} takes a number from 1 to {num_experts}, the experts of a layer, or {ALL}; got {self.top_k}."
            )
        current = getattr(section, name)
        setattr(section, name, [top_k] * len(current) if isinstance(current, list) else top_k)


def split_settings(reference: str) -> tuple[str, Settings]:
    """Return a model's path or name, and the settings that follow it.

    Raises:
        UserError: there is no such setting, one is named twice, or it has no such value.
    """
    name, assignments = split_assignments(reference)
    values: dict[str, str] = {}
    for key, value in assignments:
        if key not in _READ:
            names = ", ".join(_READ)
            raise UserError(f"Models of hf: have the settings {names}; leave {quote(key)} out.")
        if key in values:
            raise UserError(f"{quote(reference)} has the setting {key} twice; name it once.")
        values[key] = _READ[key](key, value)
    if GGUF not in values and name.lower().endswith(f".{GGUF}"):
        folder, file = os.path.split(name)
        return folder or os.curdir, Settings(**values, gguf=file)
    return name, Settings(**values)


def _read_top_k(name: str, value: str) -> str:
    # At most six digits: more experts than any model has.
    if value != ALL and not (value.isascii() and value.isdigit() and len(value) <= 6):
        raise UserError(f"{name} takes a whole number, or {ALL}; got {quote(value)}.")
    return value if value == ALL else str(int(value))


def _read_dtype(name: str, value: str) -> str:
    if value not in _DTYPES:
        raise UserError(f"{name} takes one of {', '.join(_DTYPES)}; got {quote(value)}.")
    return value


def _read_kernels(name: str, value: str) -> str:
    if value not in KERNELS[name]:
        raise UserError(f"{name} takes one of {', '.join(KERNELS[name])}; got {quote(value)}.")
    return value


def _read_gguf(name: str, value: str) -> str:
    if not value:
        raise UserError(f"{name} takes the name of a GGUF file; got nothing.")
    return value


_READ = {
    TOP_K: _read_top_k, DTYPE: _read_dtype, **dict.fromkeys(KERNELS, _read_kernels), GGUF: _read_gguf,
}  # fmt: skip


def num_experts_of(config: Any) -> int | None:
    """Return the number of experts of a layer that a configuration states; None where it states none."""
    sections = [section for section, _ in _top_k_fields(config)] or [config.get_text_config()]
    return next(filter(None, map(_experts_in, sections)), None)


def top_k_of(config: Any) -> int | None:
    """Return the experts per token that a configuration states; None where it states none, or layers differ."""
    values = [getattr(section, name) for section, name in _top_k_fields(config)]
    counts = {count for value in values for count in (value if isinstance(value, list) else [value])}
    return counts.pop() if len(counts) == 1 else None


def _experts_in(section: Any) -> int | None:
    """Return the number of experts in a section of a configuration."""
    values = (getattr(section, field, None) for field in _EXPERTS_NAMES)
    return next(filter(_is_count, values), None)


def _top_k_fields(config: Any) -> Iterator[tuple[Any, str]]:
    """Yield the sections of a configuration that hold the number of experts per token, and what it is called there."""
    text_config = config.get_text_config()
    sections = [text_config, *(getattr(text_config, name, None) for name in _SECTIONS)]
    for section in filter(None, sections):
        for name in _TOP_K_NAMES:
            value = getattr(section, name, None)
            if _is_count(value) or (isinstance(value, list) and value and all(map(_is_count, value))):
                yield section, name


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
