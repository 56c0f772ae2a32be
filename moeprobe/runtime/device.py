"""The device that a name means, and names of precisions."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moeprobe.errors import UserError, option
from moeprobe.runtime.arguments import check_arguments

if TYPE_CHECKING:
    import torch

_KINDS = ("cpu", "cuda", "mps")
AUTO, FLOAT32 = "auto", "float32"
# Precisions of forward passes.
PRECISIONS = (FLOAT32, "bfloat16", "float16")
# Precisions of the weights of a language model of ``hf:``; auto = as they were saved.
DTYPES = (AUTO, *PRECISIONS)
_LABELS = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}
_NAME = re.compile(rf"({'|'.join(_KINDS)})(:\d+)?")


def check_device(name: str) -> None:
    """Raise ``UserError`` where no machine has a device called ``name``; torch is not imported to find out."""
    if name != "auto" and not _NAME.fullmatch(name):
        raise UserError(
            f"There is no device {name!r}; choose auto or one of {', '.join(_KINDS)}, e.g. cuda:1."
        )


def check_dtype(name: str) -> None:
    """Raise ``UserError`` unless weights can be loaded in the format called ``name``."""
    _check_choice("dtype", name, DTYPES)


def check_precision(name: str) -> None:
    """Raise ``UserError`` unless passes can be of a precision called ``name``."""
    _check_choice("precision", name, PRECISIONS)


def _check_choice(keyword: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise UserError(f"{option(keyword)} is {', '.join(names[:-1])} or {names[-1]}; got {name!r}.")


def label_of(kind: str) -> str:
    """Return what sentences call a kind of device."""
    return _LABELS.get(kind, kind)


@check_arguments
def choose_device(name: str) -> "torch.device":
    """Return the device called ``name``; "auto" takes CUDA, then MPS, then the CPU.

    >>> from moeprobe import api
    >>> api.choose_device("cpu")
    device(type='cpu')

    Raises:
        UserError: there is no such device here.
    """
    check_device(name)
    import torch

    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name == "auto":
        return torch.device(available[0])
    if name.partition(":")[0] not in available:
        devices = " and ".join(_LABELS[kind] for kind in reversed(available))
        raise UserError(
            f"{_LABELS[name.partition(':')[0]]} is not available: this PyTorch sees only a {devices}. Use "
            f"{option('device', 'auto')}, or run moeprobe doctor."
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is no device; choose auto or one of {', '.join(available)}.") from None


@contextmanager
def full_float32() -> Iterator[None]:
    """Let float32 mean float32 while this lasts, on any device.

    PyTorch lets convolutions of float32 on CUDA round their inputs to TF32, with ten bits of mantissa for 23: enough
    for training, but a patch embedding so rounded moves choices of experts that no perturbation moved.
    """
    import torch

    backends: tuple[Any, ...] = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
