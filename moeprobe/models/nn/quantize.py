"""Weights as narrower formats hold them, in their own type: rounded, and back ("fake" quantization).

bf16 and fp16 round every number. The others round matrices alone (vectors stay, as where models are served): to the
nearest, symmetrically, without calibration, with one scale for each output (fp8_e4m3, int8), or for each 128 inputs of
an output (int4_g128), by the largest number there.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_GROUP = 128


def quantize_weight(weight: Tensor, name: str, *, inputs: int | None = -1) -> Tensor:
    """Return a parameter as a format of ``FORMATS`` holds it.

    Args:
        weight: of any shape; of a convolution all axes but the first are inputs.
        name: of the format.
        inputs: the axis that is multiplied with the input, from the end; None of (stacked) vectors.
    """
    with torch.no_grad():
        if name in _PLAIN:
            limit = torch.finfo(_PLAIN[name]).max
            return weight.clamp(-limit, limit).to(_PLAIN[name]).to(weight.dtype)
        if inputs is None or weight.ndim < 2:
            return weight.clone()
        rows = weight.float().flatten(1) if weight.ndim > 3 else weight.float().movedim(inputs, -1)
        quantized = _IN_ROWS[name](rows).to(weight.dtype)
        return quantized.view_as(weight) if weight.ndim > 3 else quantized.movedim(-1, inputs)


def _row_scales(rows: Tensor, largest: float) -> Tensor:
    """Return by what each row is divided, so that its largest number is ``largest``."""
    return (rows.abs().amax(-1, keepdim=True) / largest).clamp_min(torch.finfo(rows.dtype).tiny)


def _int8(rows: Tensor) -> Tensor:
    scale = _row_scales(rows, 127)
    return (rows / scale).round() * scale


def _fp8(rows: Tensor) -> Tensor:
    scale = _row_scales(rows, torch.finfo(torch.float8_e4m3fn).max)
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def _int4(rows: Tensor) -> Tensor:
    """Round rows in groups; the last one of a row may be shorter."""
    size = rows.shape[-1]
    groups = torch.nn.functional.pad(rows, (0, -size % _GROUP)).unflatten(-1, (-1, _GROUP))
    scale = _row_scales(groups, 7)
    return ((groups / scale).round() * scale).flatten(-2)[..., :size]


_PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16}
_IN_ROWS: dict[str, Callable[[Tensor], Tensor]] = {"fp8_e4m3": _fp8, "int8": _int8, "int4_g128": _int4}
FORMATS = (*_PLAIN, *_IN_ROWS)
