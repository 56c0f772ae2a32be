"""Passes in the number format that a device computes in besides float32: what arithmetic alone may change.

``torch.autocast`` rounds the operands of products. A CPU without instructions for bfloat16 takes many times as long for
that as for float32, so there products are emulated: operands rounded to bfloat16, multiplied and added in float32, and
the result rounded. The format is the same; products are added up in the order in which float32 adds them up.
"""

import platform
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DTYPES = {"cpu": torch.bfloat16, "cuda": torch.bfloat16, "mps": torch.float16}
# What autocast runs in bfloat16 on a CPU, as far as layers of experts and their neighbors use it.
_PRODUCTS = {
    F.linear, F.conv1d, F.conv2d, F.scaled_dot_product_attention, torch.conv1d, torch.conv2d, torch.matmul, torch.mm,
    torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm,
}  # fmt: skip
# Instructions for bfloat16 of processors of this kind.
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def other_dtype(device: torch.device) -> torch.dtype:
    """Return the format of passes in another than float32."""
    return _DTYPES[device.type]


def other_dtype_name(device: torch.device) -> str:
    """Return the format in words, e.g. for a sidecar."""
    name = str(other_dtype(device)).removeprefix("torch.")
    return f"{name}, emulated" if is_emulated(device) else name


def is_emulated(device: torch.device) -> bool:
    """Whether the device has no instructions for bfloat16, so that its products are emulated."""
    return device.type == "cpu" and not _has_instructions()


@cache
def _has_instructions() -> bool:
    """Whether this processor multiplies bfloat16 itself; what nobody can tell of it counts as yes."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    if not hasattr(torch.cpu, "get_capabilities"):  # older releases of torch do not say it
        return True
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _INSTRUCTIONS)


@contextmanager
def in_dtype(device: torch.device, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Let passes compute in a format; None = the other one of the device."""
    dtype = dtype or other_dtype(device)
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, dtype=dtype))
        if dtype == torch.bfloat16 and is_emulated(device):
            stack.enter_context(_Emulated())
        yield


class _Emulated(TorchFunctionMode):
    """Products whose operands and result are rounded to bfloat16, and that are computed in float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation; a product is emulated where autocast would have narrowed it."""
        kwargs = kwargs or {}
        if func not in _PRODUCTS or "out" in kwargs or not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if _has_float64((*args, *kwargs.values())):  # which autocast leaves alone
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            result = func(*_round_operands(args), **_round_operands(kwargs))
        return result.to(torch.bfloat16)


def _has_float64(values: Iterable[Any]) -> bool:
    return any(
        value.dtype == torch.float64
        if isinstance(value, Tensor)
        else isinstance(value, tuple | list) and _has_float64(value)
        for value in values
    )


def _round_operands(value: Any) -> Any:
    """Return operands, of which floating tensors hold what bfloat16 can."""
    if isinstance(value, Tensor):
        return value.to(torch.bfloat16).float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _round_operands(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_round_operands, value))
    return value
