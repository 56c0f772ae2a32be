"""Long base64 in lines of JSON: cut out before the line is parsed, and decoded a part at a time.

To parse 300 MB of text, encode and decode it takes six copies, whose allocation takes longer than the work.

Axes: T rows, L layers, K numbers of each.
"""

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault

# Bytes of a line that are read at a time.
_PIECE = 2**20
# Characters from which on a text is long, and those of which an .npy file's header is read.
LONG, _HEAD = 2**16, 2**14


@dataclass(frozen=True)
class LongText:
    """Base64 as it stands in a line."""

    text: memoryview
    what: str

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        padding = bytes(self.text[-2:]).count(b"=")
        return len(self.text) // 4 * 3 - padding

    def head(self) -> bytes:
        """Return its first bytes."""
        return self.part(0, min(_HEAD // 4 * 3, self.size))

    def part(self, begin: int, end: int) -> bytes:
        """Return its bytes from ``begin`` up to ``end``.

        Raises:
            Fault: it is not base64.
        """
        if len(self.text) % 4:
            raise Fault(f"{self.what} is not base64 (its length is no multiple of 4)")
        first = begin // 3
        try:
            content = binascii.a2b_base64(self.text[first * 4 : -(-end // 3) * 4], strict_mode=True)
        except ValueError as error:
            raise Fault(f"{self.what} is not base64 ({error})") from None
        return content[begin - 3 * first : end - 3 * first]


@dataclass(frozen=True)
class LongArray:
    """An array ``(T, L, K)`` whose rows are decoded when they are asked for."""

    text: LongText
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        begin, end, _ = rows.indices(self.shape[0])
        width = self.shape[1] * self.shape[2] * self.dtype.itemsize
        content = self.text.part(self.offset + begin * width, self.offset + max(end, begin) * width)
        return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])


def read_line(file: BinaryIO, limit: int) -> bytes | bytearray:
    """Return a line of at most ``limit`` bytes: as ``readline`` does, which holds a long one twice."""
    start = file.readline(min(_PIECE, limit))
    if len(start) < _PIECE or start.endswith(b"\n"):
        return start
    line = bytearray(start)
    while len(line) < limit and not line.endswith(b"\n"):
        piece = file.readline(min(_PIECE, limit - len(line)))
        if not piece:
            break
        line += piece
    return line


def parse_without(line: bytes | bytearray, keys: Sequence[str]) -> Any:
    """Parse a line of JSON in which long base64 under some keys becomes ``LongText``; raises as ``json.loads``."""
    parts: list[bytes | bytearray] = []
    cut: dict[tuple[str, str], LongText] = {}
    uncut = 0
    for begin, end, key in _spans(line, keys):
        parts += [line[uncut:begin], f"cut {len(cut)}".encode()]
        cut[key, f"cut {len(cut)}"] = LongText(memoryview(line)[begin:end], key)
        uncut = end
    if not cut:
        return json.loads(line)

    def restore(values: dict[str, Any]) -> dict[str, Any]:
        return values | {
            key: cut[key, values[key]]
            for key in keys
            if isinstance(values.get(key), str) and (key, values[key]) in cut
        }

    return json.loads(b"".join([*parts, line[uncut:]]), object_hook=restore)


def _spans(line: bytes | bytearray, keys: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return where long texts begin and end, without their quotes, and under which key they stand."""
    spans = []
    for key in keys:
        name, at = f'"{key}"'.encode(), 0
        while (at := line.find(name, at)) >= 0:
            at += len(name)
            # A colon and a quote, with white space about them.
            begin = line.find(b'"', at, at + 16) + 1
            if not begin or line[at : begin - 1].strip() != b":":
                continue
            end = line.find(b'"', begin)
            # An escape is left to the parser; base64 needs none.
            if end - begin >= LONG and line.find(b"\\", begin, end) < 0:
                spans.append((begin, end, key))
                at = end
    return sorted(spans)
