"""Reads msgpack object by object, and leaves payloads in the file.

The msgpack library copies every payload at least twice, and a checkpoint is payload almost only. Here a payload is a
range of the file, whatever is inside it is read by a cursor over that range, and nothing is allocated by what a
header claims: every length is held to the bytes that are left. The library writes (``vmoe_write``), and is the
reference in the tests.

Source: the msgpack specification.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from moeprobe.errors import UserError
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import open_regular

_WINDOW = 1 << 16

# First byte -> kind and the bytes of the length that follows.
_SIZED = {
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xC7: ("extension", 1), 0xC8: ("extension", 2), 0xC9: ("extension", 4),
    0xD9: ("string", 1), 0xDA: ("string", 2), 0xDB: ("string", 4),
    0xDC: ("list", 2), 0xDD: ("list", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS: dict[int, Any] = {0xC0: None, 0xC2: False, 0xC3: True}
_FLOATS = {0xCA: 4, 0xCB: 8}
# First byte -> bytes of a whole number, signed or not.
_INTEGERS = {
    **{0xCC + power: (1 << power, False) for power in range(4)},
    **{0xD0 + power: (1 << power, True) for power in range(4)},
}


class File:
    """A file that is read at offsets; use it as a context.

    Raises:
        UserError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_regular(path, buffered=False)  # what is near is kept here
        self.size = path.stat().st_size
        self._begin, self._window = 0, b""

    def __enter__(self) -> "File":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes, few of them: nearby bytes are kept for the next call."""
        start = offset - self._begin
        if start < 0 or start + count > len(self._window):
            # At least a window: headers are read a few bytes at a time.
            window = bytearray(max(count, min(_WINDOW, self.size - offset)))
            self.read_into(offset, memoryview(window))
            self._begin, self._window, start = offset, bytes(window), 0
        return self._window[start : start + count]

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from ``offset`` on, without a copy in between.

        Raises:
            UserError: they are not there.
        """
        try:
            self._file.seek(offset)
            while target.nbytes:
                count = self._file.readinto(target)
                # A short read at the end is a truncated file; elsewhere it just continues.
                if not count:
                    raise UserError(f"{self.path} is truncated: it ends at byte {offset}.")
                target, offset = target[count:], offset + count
        except OSError as error:
            raise UserError(f"Cannot read {self.path}: {error.strerror or error}.") from None


class Span(NamedTuple):
    """The byte range of a payload."""

    start: int
    stop: int


class _Head(NamedTuple):
    """The beginning of an object: a value, or how many items or bytes follow."""

    kind: str
    value: Any
    code: int = 0


class Cursor:
    """Reads one object after another between two offsets of a file.

    Every reading method raises ``UserError`` if the next object is of another kind, or if the range ends too early.
    """

    def __init__(self, file: File, span: Span | None = None) -> None:
        self._file = file
        self._position, self._end = span or Span(0, file.size)

    def error(self, problem: str) -> UserError:
        """Return the error to raise for a problem at this place."""
        return UserError(
            f"{self._file.path} is damaged or of another format: at byte {self._position}, {problem}."
        )

    def kind(self) -> str:
        """Return the kind of the next object: nil, boolean, integer, float, string, bytes, list, map or extension."""
        position = self._position
        kind = self._head().kind
        self._position = position
        return kind

    def is_extension(self, code: int) -> bool:
        """Whether the next object is an extension of this code."""
        position = self._position
        head = self._head()
        self._position = position
        return head.kind == "extension" and head.code == code

    def integer(self) -> int:
        """Read a whole number that is not negative."""
        value: int = self._expect("integer").value
        if not 0 <= value < 1 << 63:
            raise self.error(f"{value} is out of range")
        return value

    def boolean(self) -> bool:
        """Read true or false."""
        return bool(self._expect("boolean").value)

    def optional_integer(self, default: int) -> int:
        """Read a whole number; nil is ``default``."""
        if self.kind() == "nil":
            self.skip()
            return default
        return self.integer()

    def text(self) -> str:
        """Read a string."""
        start, stop = self._payload("string")
        if stop - start > _WINDOW:
            raise self.error(f"a string has {stop - start:,} bytes")
        try:
            return self._file.read(start, stop - start).decode()
        except UnicodeDecodeError:
            raise self.error("a string is no UTF-8") from None

    def items(self, count: int | None = None) -> int:
        """Read the head of a list, of ``count`` items where it is given; returns how many follow."""
        length: int = self._expect("list").value
        if count is not None and length != count:
            raise self.error(f"a list has {length} items where it should have {count}")
        return length

    def entries(self) -> Iterator[str]:
        """Read the head of a map and yield its keys; the caller reads each value before the next key."""
        keys: set[str] = set()
        for _ in range(self._expect("map").value):
            key = self.text()
            if key in keys:
                raise self.error(f"the key {quote(key)} is given twice")
            keys.add(key)
            yield key

    def bytes(self) -> Span:
        """Read a run of bytes: its range in the file."""
        return self._payload("bytes")

    def nested_cursor(self) -> "Cursor":
        """Read a run of bytes that holds msgpack itself: a cursor over it."""
        return Cursor(self._file, self.bytes())

    def extension(self, code: int) -> "Cursor":
        """Read an extension object of this code, whose payload is msgpack: a cursor over it."""
        head = self._expect("extension")
        if head.code != code:
            raise self.error(f"an object of code {head.code} is found where code {code} is expected")
        return Cursor(self._file, self._pass(head.value))

    def skip(self) -> None:
        """Read an object, whatever it is, and forget it."""
        pending = 1
        while pending:
            kind, value, _ = self._head()
            pending -= 1
            if kind == "list":
                pending += value
            elif kind == "map":
                pending += 2 * value
            elif kind in ("string", "bytes", "extension", "float"):
                self._pass(value)

    def finish(self) -> None:
        """Raise ``UserError`` if anything is left."""
        if self._position != self._end:
            raise self.error(f"{self._end - self._position} bytes follow the end")

    def _expect(self, kind: str) -> _Head:
        head = self._head()
        if head.kind != kind:
            raise self.error(f"{_article(head.kind)} is found where {_article(kind)} is expected")
        return head

    def _payload(self, kind: str) -> Span:
        return self._pass(self._expect(kind).value)

    def _pass(self, count: int) -> Span:
        """Step over ``count`` bytes; returns their range."""
        start, stop = self._position, self._position + count
        if stop > self._end:
            raise UserError(
                f"{self._file.path} is truncated or damaged: at byte {start}, {count:,} bytes should follow "
                f"and {self._end - start:,} do."
            )
        self._position = stop
        return Span(start, stop)

    def _number(self, size: int, *, signed: bool = False) -> int:
        start, _ = self._pass(size)
        return int.from_bytes(self._file.read(start, size), "big", signed=signed)

    def _head(self) -> _Head:
        first = self._number(1)
        if first in _CONSTANTS:
            value = _CONSTANTS[first]
            return _Head("nil" if value is None else "boolean", value)
        if first < 0x80 or first >= 0xE0:
            return _Head("integer", first if first < 0x80 else first - 0x100)
        if first in _INTEGERS:
            size, signed = _INTEGERS[first]
            return _Head("integer", self._number(size, signed=signed))
        if first in _FLOATS:
            return _Head("float", _FLOATS[first])
        if first < 0xC0:
            kind, count = (
                ("map", first & 15)
                if first < 0x90
                else ("list", first & 15)
                if first < 0xA0
                else ("string", first & 31)
            )
        elif first in _EXTENSIONS:
            kind, count = "extension", _EXTENSIONS[first]
        elif first in _SIZED:
            kind, size = _SIZED[first]
            count = self._number(size)
        else:
            raise self.error(f"0x{first:02x} begins no msgpack object")
        code = self._number(1, signed=True) if kind == "extension" else 0
        # An item takes a byte at least, so no honest list is longer than what is left of the file.
        least = 2 * count if kind == "map" else count
        if least > self._end - self._position:
            raise UserError(
                f"{self._file.path} is truncated or damaged: at byte {self._position}, {_article(kind)} of {count:,} "
                f"begins and {self._end - self._position:,} bytes are left."
            )
        return _Head(kind, count, code)


def _article(kind: str) -> str:
    plain = {
        "nil": "nil",
        "bytes": "a run of bytes",
        "integer": "a whole number",
        "extension": "an extension object",
    }
    return plain.get(kind, f"a {kind}")
