"""Reads the pickles of CIFAR's python version without executing anything in them.

A pickle is a program: it can import and call whatever it names. This reader admits the three names by which an array
is spelled, and puts records of its own in their place, so that not even NumPy's unpickling runs; any other name
ends the reading.
"""

import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from moeprobe.errors import UserError

_ELEMENTS = {"u1": np.uint8, "i8": np.int64}


def read_pickle(path: Path) -> object:
    """Return what is in ``path``: containers, strings (as bytes), numbers, arrays of bytes or integers.

    Raises:
        UserError: the file is damaged, or asks for anything else.
    """
    try:
        with path.open("rb") as file:
            return _arrays(_Reader(file, path).load())
    except UserError:
        raise
    except Exception as error:  # damaged opcodes make the reader raise almost anything
        raise UserError(f"{str(path)!r} is damaged, or not one of CIFAR's python files.") from error


class _Dtype:
    """Takes the place of ``numpy.dtype(code, align, copy)``."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.element = _ELEMENTS[code.decode() if isinstance(code, bytes) else code]

    def __setstate__(self, state: tuple) -> None:
        if state[1] in (">", b">"):
            raise ValueError("big-endian")


class _Array:
    """Takes the place of ``numpy.ndarray``, and of the function that makes an empty one to be filled."""

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise TypeError("not an array of numbers")
        values = np.frombuffer(raw, dtype=dtype.element)
        if math.prod(shape) != values.size:
            raise ValueError("shape and size differ")
        self.values = values.reshape(shape, order="F" if is_fortran else "C")


class _Reader(pickle.Unpickler):
    # Python 2 wrote the published files with an old NumPy; a new NumPy spells the same function otherwise.
    _ADMITTED = {  # noqa: RUF012 - read only
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        admitted = self._ADMITTED.get((module, name))
        if admitted is None:
            self._refuse(f"{module}.{name}")
        return admitted

    def persistent_load(self, pid: Any) -> NoReturn:
        self._refuse(f"object {pid!r}")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"{str(self._path)!r} asks for {what}, which none of CIFAR's files needs: nothing of it was run; "
            "download the file again."
        )


def _arrays(value: Any) -> Any:
    """Return ``value`` with arrays instead of their placeholder records (dictionaries only)."""
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value.values if isinstance(value, _Array) else value
