"""Files of responses and logs, read as they are or decompressed as a stream: gzip and Zstandard, told by their bytes.

What comes out is never held as a whole, and is bounded by what went in: a few kilobytes can stand for terabytes.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from moeprobe.errors import UserError
from moeprobe.runtime.files import open_regular

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Bytes that any file may expand to, and how many more for each of its own. JSON of routing shrinks to a tenth or so.
FREE_BYTES, _RATIO = 2**28, 200


def is_compressed(beginning: bytes) -> bool:
    """Whether a file that begins so is compressed in one of the two ways."""
    return beginning.startswith((_GZIP, _ZSTD))


class _Expanded(io.RawIOBase):
    """The content of a compressed file.

    Args:
        path: of the file, for errors.
        source: the file, open at its beginning.
        head: its first bytes.
    """

    def __init__(self, path: Path, source: BinaryIO, head: bytes) -> None:
        self._path, self._left = path, FREE_BYTES + _RATIO * path.stat().st_size
        self._stream: Any = (
            gzip.GzipFile(fileobj=source)
            if head.startswith(_GZIP)
            else pa.CompressedInputStream(pa.PythonFile(source, "r"), "zstd")
        )

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return how many there are."""
        try:
            content = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{self._path} is compressed, and damaged or cut off; copy or compress it again."
            ) from error
        self._left -= len(content)
        if self._left < 0:
            raise UserError(
                f"{self._path} expands to more than {_RATIO} times its size; decompress it yourself if you trust it."
            )
        buffer[: len(content)] = content
        return len(content)


class ExpandedFile(io.BufferedReader):
    """A file whose content is read, decompressed where it is compressed.

    Attributes:
        compressed: whether it is.
    """

    def __init__(self, path: Path, source: BinaryIO) -> None:
        head = source.read(4)
        source.seek(0)
        self._source, self._position = source, 0
        self.compressed = is_compressed(head)
        raw: Any = _Expanded(path, source, head) if self.compressed else source
        super().__init__(raw, 2**16)

    def advance(self) -> int:
        """Return how many bytes of the file itself were read since the last call."""
        before, self._position = self._position, (self._source if self.compressed else self).tell()
        return self._position - before


@contextmanager
def open_expanded(path: Path) -> Iterator[ExpandedFile]:
    """Open a regular file to read its content, which is decompressed on the way.

    Raises:
        UserError: it cannot be opened. On reading: it is damaged, or expands to far more than it holds.
    """
    with open_regular(path, buffered=False) as source, ExpandedFile(path, source) as file:
        yield file
