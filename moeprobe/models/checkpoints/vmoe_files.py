"""Reads V-MoE's checkpoints: an index and any number of data shards, in msgpack.

``PREFIX.index`` says of each array its shape, its type, into which boxes it is cut and which shard holds each;
``PREFIX.data-00000-of-00004`` and so on hold the boxes, by the number of the array: arrays are numbered in the order of
their keys, sorted as strings at each level. All of it is compared with all of it before a single array is read.

Source: the format of ``vmoe/checkpoints`` in google-research/vmoe, version 20220622 and the older one without.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.arrays import (
    DTYPES,
    NDARRAY,
    Box,
    Chunk,
    Piece,
    Stored,
    StoredArray,
    check_tiles,
    read_dtype,
    read_shape,
    unique,
    volume,
)
from moeprobe.models.checkpoints.flax import MOST_LEVELS, read_flax
from moeprobe.models.checkpoints.msgpack import Cursor, File
from moeprobe.models.checkpoints.orbax import read_orbax
from moeprobe.runtime.characters import quoted

VERSION = "20220622"
MARK = "__msgpack_array_chunk_a87ca2__"
LEAF, SLICES = 8, 6  # codes of the extension objects of an array in the index, and of a box


class _Leaf(NamedTuple):
    """An array as the index describes it; ``shards`` says where each box is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[Box, ...]
    shards: tuple[int, ...]


def index_path(prefix: Path) -> Path:
    """Return the file that holds the index."""
    return prefix.with_name(f"{prefix.name}.index")


def shard_path(prefix: Path, shard: int, count: int) -> Path:
    """Return the file that holds one of ``count`` data shards."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{count:05d}")


def read_vmoe(source: Path) -> Stored:
    """Return what a checkpoint holds; its arrays are checked and not read yet.

    Args:
        source: the prefix of a sharded checkpoint, one of its files, a plain flax msgpack file, or a folder of Orbax's.

    Raises:
        UserError: there is none, a file is missing, truncated or damaged, or the files do not belong together.
    """
    prefix = source.with_name(re.sub(r"\.(index|data-\d{5,}-of-\d{5,})$", "", source.name))
    if index_path(prefix).is_file():
        return _read_sharded(prefix)
    if source.is_dir():
        return read_orbax(source)
    if not source.is_file() or prefix != source:
        raise UserError(
            f"There is no checkpoint {str(source)!r}; give the prefix P of the files P.index and P.data-00000-of-…, "
            "a flax msgpack file, or a folder that Orbax wrote."
        )
    return read_flax(source)


def _read_sharded(prefix: Path) -> Stored:
    count, leaves = _read_index(index_path(prefix))
    promised: list[set[tuple[int, Box]]] = [set() for _ in range(_existing(prefix, count))]
    for number, leaf in enumerate(leaves):
        for box, shard in zip(leaf.boxes, leaf.shards, strict=True):
            promised[shard].add((number, box))
    chunks: list[list[Chunk]] = [[] for _ in leaves]
    for shard in range(count):
        path = shard_path(prefix, shard, count)
        for number, chunk in _read_shard(path, leaves):
            if (number, chunk.box) not in promised[shard]:
                raise UserError(
                    f"{path} and {index_path(prefix)} do not belong together, or one is damaged: a chunk of "
                    f"{quoted(leaves[number].name)} at {chunk.box} is there twice or not in the index."
                )
            promised[shard].remove((number, chunk.box))
            chunks[number].append(chunk)
        for number, box in promised[shard]:
            raise UserError(
                f"{path} is damaged: the chunk of {quoted(leaves[number].name)} at {box} is missing."
            )
    arrays = {}
    for leaf, held in zip(leaves, chunks, strict=True):
        problem = check_tiles(leaf.shape, [chunk.box for chunk in held])
        if problem is not None:
            raise UserError(f"{index_path(prefix)} is damaged: of {quoted(leaf.name)}, {problem}.")
        arrays[leaf.name] = StoredArray(leaf.shape, leaf.dtype, tuple(held))
    return Stored(arrays)


def _existing(prefix: Path, count: int) -> int:
    """Return ``count``; raise ``UserError`` unless that many shards are there."""
    for shard in range(count):
        path = shard_path(prefix, shard, count)
        if not path.is_file():
            raise UserError(f"{index_path(prefix)} asks for {count:,} data shards, and there is no {path}.")
    return count


def _read_index(path: Path) -> tuple[int, list[_Leaf]]:
    """Return the number of shards, and the arrays in the order of their numbers."""
    count, leaves = None, None
    with File(path) as file:
        cursor = Cursor(file)
        for key in cursor.entries():
            if key == "shard_count":
                count = cursor.integer()
            elif key == "index":
                leaves = list(_leaves(cursor, ()))
            elif key == "version":
                version = cursor.text()
                if version != VERSION:
                    raise UserError(f"{path} is of version {quoted(version)}; what is read is {VERSION}.")
            else:
                raise cursor.error(f"the key {quoted(key)} is not known")
        cursor.finish()
    if count is None or leaves is None:
        raise UserError(f"{path} is no index of a V-MoE checkpoint: it lacks shard_count or index.")
    # Sorted as strings at each level: encoderblock_10 comes before encoderblock_2.
    leaves.sort(key=lambda leaf: leaf[0])
    in_order = [leaf for _, leaf in leaves]
    unique(path, [leaf.name for leaf in in_order])
    for leaf in in_order:
        if any(shard >= count for shard in leaf.shards):
            raise UserError(
                f"{path} is damaged: a chunk of {quoted(leaf.name)} is in a shard beyond the {count:,}."
            )
    return count, in_order


def _leaves(cursor: Cursor, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Leaf]]:
    """Yield the keys on the way and what they lead to; empty maps and nil lead to nothing."""
    if len(above) > MOST_LEVELS:
        raise cursor.error("maps are nested too deeply")
    if cursor.kind() == "nil":
        cursor.skip()
    elif cursor.kind() == "map":
        for key in cursor.entries():
            yield from _leaves(cursor, (*above, key))
    else:
        yield above, _read_leaf(cursor.extension(LEAF), "/".join(above))


def _read_leaf(cursor: Cursor, name: str) -> _Leaf:
    cursor.items(3)
    about = cursor.packed()
    about.items(4)
    shape = read_shape(about)
    dtype = read_dtype(about, shape)
    about.boolean()  # whether JAX held the type to be weak: nothing to us
    if list(about.entries()):
        raise about.error("an array has attributes that are not known")
    about.finish()
    boxes = tuple(_read_box(cursor.packed(), shape) for _ in range(cursor.items()))
    shards = tuple(cursor.integer() for _ in range(cursor.items(len(boxes))))
    cursor.finish()
    return _Leaf(name, shape, dtype, boxes, shards)


def _read_box(cursor: Cursor, shape: tuple[int, ...]) -> Box:
    """Read a slice per axis, which must be within the array."""
    cursor.items(len(shape))
    box = []
    for size in shape:
        bounds = cursor.packed()
        bounds.items(3)
        start, stop, step = (
            bounds.optional_integer(0),
            bounds.optional_integer(size),
            bounds.optional_integer(1),
        )
        bounds.finish()
        if not (start <= stop <= size and step == 1):
            raise cursor.error(
                f"the slice [{start}:{stop}:{step}] is no contiguous part of an axis of {size}"
            )
        box.append((start, stop))
    cursor.finish()
    return tuple(box)


def _read_shard(path: Path, leaves: list[_Leaf]) -> Iterator[tuple[int, Chunk]]:
    """Yield the number of an array and one of its chunks, for all chunks of a shard."""
    with File(path) as file:
        cursor = Cursor(file)
        marked = False
        for key in cursor.entries():
            if key == MARK:
                marked = cursor.boolean()
                continue
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) >= len(leaves):
                raise cursor.error(f"{quoted(key)} is no number of an array of the index")
            for _ in range(cursor.items()):
                yield int(key), _read_chunk(cursor, path, leaves[int(key)])
        cursor.finish()
        if not marked:
            raise UserError(f"{path} is no data shard of a V-MoE checkpoint.")


def _read_chunk(cursor: Cursor, path: Path, leaf: _Leaf) -> Chunk:
    """Read a list of flat pieces, and the box that they fill."""
    cursor.items(2)
    pieces = []
    for _ in range(cursor.items()):
        inner = cursor.extension(NDARRAY)
        inner.items(3)
        shape = read_shape(inner)
        dtype = read_dtype(inner, shape)
        piece = Piece(path, *inner.bytes())
        inner.finish()
        flat = len(shape) == 1 and shape[0] * DTYPES[dtype].itemsize == piece.stop - piece.start
        if dtype != leaf.dtype or not flat:
            raise cursor.error(
                f"a piece of {quoted(leaf.name)} has another type, shape or size than it should"
            )
        pieces.append(piece)
    chunk = Chunk(_read_box(cursor.extension(SLICES), leaf.shape), tuple(pieces))
    held = sum(piece.stop - piece.start for piece in pieces)
    if held != volume(chunk.box) * DTYPES[leaf.dtype].itemsize:
        raise cursor.error(f"a chunk of {quoted(leaf.name)} at {chunk.box} has {held:,} bytes")
    return chunk
