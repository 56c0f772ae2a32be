"""Weights that GPTQ and AWQ have packed into whole numbers of 32 bits, unpacked without a package of theirs.

Both hold, for each linear layer, ``qweight``, ``qzeros`` and ``scales``: a weight is its whole number less the zero of
its group, times the scale of its group. A group is some inputs of one output. They differ in what shares a word:

* GPTQ: neighboring inputs in ``qweight (I / n, O)``, and neighboring outputs in ``qzeros (G, O / n)``. ``g_idx (I,)``
  says the group of each input. Zeros are one too small, except in ``gptq_v2`` (GPTQModel, ``docs/``;
  AutoGPTQ, ``qlinear_cuda_old.py``).
* AWQ ("gemm"): outputs in ``qweight (I, O / 8)`` and in ``qzeros (G, O / 8)``, in the order 0, 2, 4, 6, 1, 3, 5, 7
  (AutoAWQ, ``awq/modules/linear/gemm.py``).

Axes: I inputs, O outputs, G groups, n numbers of a word.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from moeprobe.errors import UserError

METHODS = ("gptq", "awq")
_WORD = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FORMATS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}
_BITS = (2, 4, 8)
_KEYS = ("qweight", "qzeros", "scales", "g_idx")


def check_packed(method: str, settings: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where weights are packed in another way than those above."""
    form = _format_of(method, settings)
    bits = settings.get("bits", settings.get("w_bit", 4))
    if form not in _FORMATS[method] or bits not in (_BITS if method == "gptq" else (4,)):
        readable = f"{' and '.join(_FORMATS[method])} with {'2, 4 or 8' if method == 'gptq' else '4'} bits"
        raise UserError(
            f"Its weights are packed by {method} in {bits} bits in the form {form}, and moeprobe reads {readable}; use "
            "another form of the model."
        )


def _format_of(method: str, settings: Mapping[str, Any]) -> str:
    key = "checkpoint_format" if method == "gptq" else "version"
    return str(settings.get(key) or _FORMATS[method][0]).lower()


def unpacked_state(
    folder: Path, method: str, settings: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors by name; a packed layer has one ``weight (O, I)``.

    Args:
        folder: with the files.
        method: one of ``METHODS``.
        settings: the quantization of its configuration.
        dtype: what numbers with a fraction are converted to.

    Raises:
        UserError: a packed layer lacks one of its tensors.
    """
    state: dict[str, Tensor] = {}
    packed: dict[str, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                stem, _, key = name.rpartition(".")
                if key not in _KEYS:
                    state[name] = file.get_tensor(name).to(dtype)
                    continue
                parts = packed.setdefault(stem, {})
                parts[key] = file.get_tensor(name)
                # At once, so that few words are in memory; files may cut a layer in two.
                if len(parts) == (len(_KEYS) if method == "gptq" else len(_KEYS) - 1):
                    state[f"{stem}.weight"] = _unpack(method, settings, packed.pop(stem)).to(dtype)
    if packed:
        stem, parts = next(iter(packed.items()))
        raise UserError(f"{stem} lacks {', '.join(sorted(set(_KEYS) - parts.keys()))}.")
    return state


def _unpack(method: str, settings: Mapping[str, Any], parts: Mapping[str, Tensor]) -> Tensor:
    """Return the weights ``(O, I)`` of a layer in float32."""
    if method == "gptq":
        groups = parts["g_idx"].long()
        # Layers may have bits of their own.
        bits = _WORD * len(parts["qweight"]) // len(groups)
        numbers = _words(parts["qweight"].mT, bits).mT
        zeros = _words(parts["qzeros"], bits) + (_format_of(method, settings) == "gptq")
    else:
        order = torch.tensor(_AWQ_ORDER).argsort()
        numbers, zeros = (
            _words(parts[key], 4).unflatten(-1, (-1, len(order)))[..., order].flatten(-2)
            for key in ("qweight", "qzeros")
        )
        groups = torch.arange(len(numbers)) // (len(numbers) // len(zeros))
    return ((numbers - zeros[groups]) * parts["scales"].float()[groups]).mT


def _words(words: Tensor, bits: int) -> Tensor:
    """Return the numbers ``(…, n · W)`` of words ``(…, W)``, those in the lowest bits first."""
    shifts = torch.arange(0, _WORD, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2)
