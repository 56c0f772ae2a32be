"""Arrays in files: known by name, shape and type, checked, and read only on demand.

An array is cut into boxes (chunks), a box into flat pieces of bytes in files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.msgpack import Cursor, File
from moeprobe.runtime.characters import quote

# NumPy has no bfloat16: the upper half of a float32, kept as the two bytes that it is.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": BFLOAT16,
    "bool": np.dtype("?"),
    **{name: np.dtype(name).newbyteorder("<") for name in (
        "float16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    )},
}  # fmt: skip
NDARRAY = 1  # code of the extension objects that hold an array
_MOST_AXES = 32
_MOST_BYTES = 1 << 62

Box = tuple[tuple[int, int], ...]


class ByteRange(NamedTuple):
    """A run of bytes in a file."""

    path: Path
    start: int
    stop: int


class Chunk(NamedTuple):
    """A box of an array, start and stop per axis, and its bytes in C order, piece after piece."""

    box: Box
    pieces: tuple[ByteRange, ...]


@dataclass(frozen=True)
class StoredArray:
    """An array in files.

    Attributes:
        shape: its axes.
        dtype: a key of ``DTYPES``.
        chunks: boxes that tile it (``check_tiles``), each with as many bytes as it has elements times their size.
    """

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def read(self) -> NDArray[Any]:
        """Return the array; its memory is all that this takes, except for boxes that are not contiguous in it.

        Raises:
            UserError: a file has changed since it was looked at.
        """
        array = np.empty(self.shape, DTYPES[self.dtype])
        for chunk in self.chunks:
            _fill(region_of(array, chunk.box), chunk.pieces)
        return array


class AnyArray(Protocol):
    """What is asked of an array that is not read yet: its axes, a key of ``DTYPES``, and to be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> str: ...  # noqa: D102

    def read(self) -> NDArray[Any]: ...  # noqa: D102


@dataclass(frozen=True)
class StoredArrays:
    """The content of a checkpoint, by name; names are the keys on the way, joined by ``/``.

    Attributes:
        arrays: readable arrays.
        others: names of entries that are no arrays (a step that is a plain number).
    """

    arrays: Mapping[str, AnyArray]
    others: tuple[str, ...] = ()


def region_of(array: NDArray[Any], box: Box) -> NDArray[Any]:
    """Return the part of an array that a box is about, as a view (also of an array without axes)."""
    where: tuple[Any, ...] = (*(slice(*bounds) for bounds in box), ...)
    return array[where]


def _fill(region: NDArray[Any], pieces: Sequence[ByteRange]) -> None:
    if region.nbytes == 0:
        return
    if not region.flags.c_contiguous:
        part = np.empty(region.shape, region.dtype)
        _fill(part, pieces)
        region[...] = part
        return
    flat: Any = region.reshape(-1).view(np.uint8)
    target = memoryview(flat)
    for path, start, stop in pieces:
        with File(path) as file:
            file.read_into(start, target[: stop - start])
        target = target[stop - start :]


def read_shape(cursor: Cursor) -> tuple[int, ...]:
    """Read a list of whole numbers."""
    axes = cursor.items()
    if axes > _MOST_AXES:
        raise cursor.error(f"an array has {axes} axes")
    return tuple(cursor.integer() for _ in range(axes))


def read_dtype(cursor: Cursor, shape: tuple[int, ...]) -> str:
    """Read the name of the data type of an array of this shape."""
    name = cursor.text()
    if name not in DTYPES:
        raise cursor.error(f"an array has the type {quote(name)}, which is not read")
    if math.prod(max(size, 1) for size in shape) * DTYPES[name].itemsize > _MOST_BYTES:
        raise cursor.error(f"an array has the impossible shape {shape}")
    return name


def read_piece(cursor: Cursor, path: Path) -> tuple[tuple[int, ...], str, ByteRange]:
    """Read the shape of an array, the name of its type, and where its bytes are."""
    inner = cursor.extension(NDARRAY)
    inner.items(3)
    shape = read_shape(inner)
    dtype = read_dtype(inner, shape)
    piece = ByteRange(path, *inner.bytes())
    inner.finish()
    return shape, dtype, piece


def read_ndarray(cursor: Cursor, path: Path) -> StoredArray:
    """Read an array stored in one piece, of as many bytes as its shape and type ask for."""
    shape, dtype, piece = read_piece(cursor, path)
    array = StoredArray(shape, dtype, (Chunk(tuple((0, size) for size in shape), (piece,)),))
    if piece.stop - piece.start != array.nbytes:
        raise cursor.error(
            f"{shape} of {dtype} should have {array.nbytes:,} bytes and has {piece.stop - piece.start:,}"
        )
    return array


def volume(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def check_tiles(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Return the fault of boxes that should cover an array exactly once; None if there is no fault.

    The boxes' edges cut the array into cells, of which each box takes some: as many steps as there are cells, which
    are no more than the elements.
    """
    if sum(map(volume, boxes)) != math.prod(shape):
        return "its chunks do not add up to the array"
    if math.prod(shape) == 0 or len(boxes) == 1:
        return None
    edges = [sorted({edge for box in boxes for edge in box[axis]}) for axis in range(len(shape))]
    edge_indices = [{edge: index for index, edge in enumerate(axis)} for axis in edges]
    occupied = np.zeros([len(axis) - 1 for axis in edges], dtype=bool)
    for box in boxes:
        cells = occupied[
            tuple(slice(at[start], at[stop]) for at, (start, stop) in zip(edge_indices, box, strict=True))
        ]
        if cells.any():
            return "two of its chunks overlap"
        cells[...] = True
    return None


def check_unique(path: Path, names: Sequence[str]) -> None:
    """Raise ``UserError`` where two different ways through the maps of a file give one name."""
    unique_names: set[str] = set()
    for name in names:
        if name in unique_names:
            raise UserError(f"{path} is damaged: it names {quote(name)} twice.")
        unique_names.add(name)
