"""Read small tensors of a GGUF file, such as the counts of an importance matrix.

The layout follows ggml's ``docs/gguf.md``: a header with metadata, the descriptions of all tensors, then their data.
Everything that a header claims is checked against the size of the file before anything is read or repeated.

Axes: n numbers of a tensor.
"""

import os
import re
import struct
from collections import defaultdict
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.count_table import CountTable, TableBuilder
from moeprobe.recordings.log_rows import Fault

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Metadata: bytes of a number by its type; texts and arrays have lengths of their own.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _TEXT, _ARRAY = 4, 8, 9
_FLOAT32 = 0
# Bytes of a name or text that is kept; axes of a tensor; experts of a layer.
_MOST_TEXT, _MOST_AXES, _MOST_EXPERTS = 2**16, 4, 2**15
_COUNTS = re.compile(r"blk\.(\d{1,9})\.(ffn_\w+_exps)\.weight\.counts")


class _Header:
    """A file that is read from its beginning; no more is read than it has."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        start = file.tell()
        self.size = file.seek(0, os.SEEK_END)
        file.seek(start)

    def number(self, form: str) -> int:
        """Return the next number."""
        return int(struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0])

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        content = self.file.read(size) if size <= self.bytes_left() else b""
        if len(content) != size:
            raise Fault("this GGUF file ends within its header: it is truncated or damaged")
        return content

    def bytes_left(self) -> int:
        """Return how many bytes follow."""
        return self.size - self.file.tell()

    def skip(self, size: int) -> None:
        """Pass over bytes."""
        if size > self.bytes_left():
            raise Fault("this GGUF file ends within its header: it is truncated or damaged")
        self.file.seek(size, os.SEEK_CUR)

    def text(self) -> str | None:
        """Return the next text; None for one that is long, which is passed over."""
        size = self.number("Q")
        if size > _MOST_TEXT:
            self.skip(size)
            return None
        return self.take(size).decode("utf-8", errors="replace")

    def value(self) -> Any:
        """Return the next value of the metadata, a text or an unsigned number of 4 bytes; pass over any other."""
        kind = self.number("I")
        if kind == _TEXT:
            return self.text()
        if kind == _UINT32:
            return self.number("I")
        if kind == _ARRAY:
            self._skip_array()
        elif kind in _SIZES:
            self.skip(_SIZES[kind])
        else:
            raise Fault(f"this GGUF file has metadata of the unknown type {kind}")
        return None

    def _skip_array(self) -> None:
        kind, length = self.number("I"), self.number("Q")
        if kind in _SIZES:
            self.skip(_SIZES[kind] * length)
        elif kind == _TEXT:
            # Each takes 8 bytes at least: a length that the file cannot have ends soon.
            for _ in range(length):
                self.skip(self.number("Q"))
        else:
            raise Fault(f"this GGUF file has an array of the unknown type {kind}")


def read_imatrix(file: BinaryIO) -> CountTable:
    """Return how often each expert was chosen while an importance matrix was computed.

    llama.cpp counts a token for each expert that it goes to, in each tensor of experts of a layer
    (``tools/imatrix/imatrix.cpp``); the tensors of a layer have the same counts.

    Args:
        file: open at its beginning.

    Raises:
        Fault: it is damaged, of a model, or has no counts per expert.
    """
    header = _Header(file)
    if header.take(4) != _MAGIC:
        raise Fault("this is no GGUF file")
    version = header.number("I")
    if version not in _VERSIONS:
        raise Fault(
            f"this GGUF file has version {version}, and versions 2 and 3 of little-endian machines are read"
        )
    tensors, entries = header.number("Q"), header.number("Q")
    alignment = 32
    for _ in range(entries):
        name, value = header.text(), header.value()
        if name == "general.type" and value != "imatrix":
            raise Fault(
                f"this GGUF file is of the type {str(value)[:40]}, and no importance matrix; run llama-imatrix on it"
            )
        if name == "general.alignment":
            alignment = int(value or 0)
    if alignment < 1:
        raise Fault("this GGUF file has general.alignment 0: it is damaged")
    locations: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for _ in range(tensors):
        name = header.text() or ""
        axes = header.number("I")
        if axes > _MOST_AXES:
            raise Fault(f"this GGUF file has a tensor of {axes} axes: it is damaged")
        size = 1
        for _ in range(axes):
            size *= header.number("Q")
        kind, offset = header.number("I"), header.number("Q")
        if (match := _COUNTS.fullmatch(name)) is not None:
            if kind != _FLOAT32 or not 1 <= size <= _MOST_EXPERTS:
                raise Fault(f"{name} takes up to {_MOST_EXPERTS:,} numbers in float32")
            locations[int(match[1])][match[2]] = (offset, size)
    if not locations:
        raise Fault("this importance matrix has no counts of experts: it is of a model without any")
    start = -(-file.tell() // alignment) * alignment
    return _table(header, locations, start)


def _table(header: _Header, locations: dict[int, dict[str, tuple[int, int]]], start: int) -> CountTable:
    builder = TableBuilder(adds=False)
    window = builder.window()
    for layer, tensors in sorted(locations.items()):
        counts = {name: _floats(header, start + offset, size) for name, (offset, size) in tensors.items()}
        (first, values), *further_counts = counts.items()
        if len(values) == 1:
            raise Fault(
                f"{first} of layer {layer} has one count for all experts: the matrix was converted from an older "
                "imatrix.dat; record it again with llama-imatrix"
            )
        for name, further_values in further_counts:
            if not np.array_equal(values, further_values):
                raise Fault(
                    f"{first} and {name} of layer {layer} have different counts: they are not of one run"
                )
        builder.add(window, layer, np.arange(len(values)), values)
    return builder.table("imatrix")


def _floats(header: _Header, offset: int, size: int) -> NDArray[np.float32]:
    """Return numbers ``(n,)`` at a place in the file."""
    if offset + 4 * size > header.size:
        raise Fault("this GGUF file ends before its counts: it is truncated")
    header.file.seek(offset)
    return np.frombuffer(header.take(4 * size), "<f4")
