"""Files that ``torch.save`` wrote, of plain containers, tensors and NumPy arrays alone: nothing in them is run."""

import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.log_rows import Fault
from moeprobe.runtime.files import DAMAGE

# Whole numbers and floats, which are all that routing and what lies beside it takes.
_KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?")


def is_packed(head: bytes) -> bool:
    """Whether a file with these first bytes is of torch."""
    return head.startswith(b"PK\x03\x04")


def unpacked(path: Path) -> dict[str, Any]:
    """Return the mapping in a file; tensors are mapped from it, and not read.

    Raises:
        UserError: it is damaged, holds what would have to be run, or is no mapping by names.
    """
    return _mapping(path, str)


def unpacked_layers(path: Path) -> dict[int, Any]:
    """Return the mapping by number of layer in a file; raises as ``unpacked``."""
    return _mapping(path, int)


def _mapping(path: Path, key: type) -> dict[Any, Any]:
    import torch

    allowed: list[Any] = [
        np.ndarray, np.dtype, *{type(np.dtype(kind)) for kind in _KINDS},
        *((_reconstruct(), f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    ]  # fmt: skip
    try:
        with zipfile.ZipFile(path) as file:
            if any(one.compress_type != zipfile.ZIP_STORED for one in file.infolist()):
                raise UserError(f"{path} is compressed, which torch.save never does.")
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except DAMAGE as error:
        refused = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
        if refused is not None:
            raise UserError(
                f"{path} holds {refused[1]}, which would have to be run; in a program that you trust, save a "
                "dictionary of tensors, lists and numbers."
            ) from None
        raise UserError(
            f"{path} is damaged, or torch.save wrote more into it than containers, tensors and arrays."
        ) from None
    if not isinstance(content, dict) or not all(isinstance(name, key) for name in content):
        raise UserError(f"{path} holds no dictionary with {'names' if key is str else 'numbers'} as keys.")
    return content


def _reconstruct() -> Any:
    """Return what makes an empty array, which a pickle then fills."""
    return np.empty(0).__reduce__()[0]


def array_of(value: Any, what: str, *, kinds: str = "iu", dims: int) -> NDArray[Any]:
    """Return a tensor, an array or nested lists as an array; what a shape claims is not allocated.

    Args:
        value: what it is.
        what: its name.
        kinds: of its numbers, letters as NumPy has them.
        dims: its axes.

    Raises:
        Fault: it is none, or of other axes or numbers.
    """
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not plain or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise Fault(f"{what} is no plain tensor")
        value = (value.float() if value.dtype == torch.bfloat16 else value.detach()).numpy()
    try:
        numbers = np.asarray(value)
    except (ValueError, OverflowError, TypeError):
        numbers = np.asarray(None)
    if numbers.ndim != dims or (numbers.dtype.kind not in kinds and numbers.size):
        raise Fault(f"{what} takes {'whole ' if kinds == 'iu' else ''}numbers in {dims} axes")
    return numbers
