"""Reads V-MoE's checkpoints: an index and any number of data shards, in msgpack; and plain flax files.

``PREFIX.index`` says of each array its shape, its type, into which boxes it is cut and which shard holds each;
``PREFIX.data-00000-of-00004`` and so on hold the boxes, by the number of the array: arrays are numbered in the order of
their keys, sorted as strings at each level. All of it is compared with all of it before a single array is read.

A plain flax file has nested maps with whole arrays in them.

Source: the format of ``vmoe/checkpoints`` in google-research/vmoe, version 20220622 and the older one without; and
``flax.serialization.to_bytes``, whose arrays are extension objects of code 1.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.arrays import (
    BFLOAT16,
    DTYPES,
    NDARRAY,
    Box,
    Chunk,
    StoredArray,
    StoredArrays,
    check_tiles,
    check_unique,
    read_dtype,
    read_ndarray,
    read_piece,
    read_shape,
    volume,
)
from moeprobe.models.checkpoints.msgpack import Cursor, File
from moeprobe.runtime.characters import quote
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import JSON_LIMIT, check_regular_files, is_file, is_folder, parse_json, resolve
from moeprobe.runtime.similar_paths import did_you_mean_path

VERSION = "20220622"
# Deeper than any state of a training; a file of nothing but brackets must not use up the stack.
MOST_LEVELS = 64
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


def read_vmoe(source: Path) -> StoredArrays:
    """Return what a checkpoint holds; its arrays are checked and not read yet.

    Args:
        source: the prefix of a sharded checkpoint, one of its files, a plain flax msgpack file, or a folder of Orbax's.

    Raises:
        UserError: there is none, a file is missing, truncated or damaged, or the files do not belong together.
    """
    prefix = source.with_name(re.sub(r"\.(index|data-\d{5,}-of-\d{5,})$", "", source.name))
    if is_file(index_path(prefix)):
        return _read_sharded(prefix)
    if is_folder(source):
        return read_orbax(source)
    if not is_file(source) or prefix != source:
        raise UserError(
            f"There is no checkpoint {str(source)!r}; give the prefix P of the files P.index and P.data-00000-of-…, "
            "a flax msgpack file, or a folder that Orbax wrote."
            f"{did_you_mean_path(source)}"
        )
    return read_flax(source)


def _read_sharded(prefix: Path) -> StoredArrays:
    count, leaves = _read_index(index_path(prefix))
    _check_shards(prefix, count)
    promised: list[set[tuple[int, Box]]] = [set() for _ in range(count)]
    # What the index promises is crossed off as shards are read.
    for number, leaf in enumerate(leaves):
        for box, shard in zip(leaf.boxes, leaf.shards, strict=True):
            promised[shard].add((number, box))
    chunks: list[list[Chunk]] = [[] for _ in leaves]
    for shard in range(count):
        path = shard_path(prefix, shard, count)
        for number, chunk in _read_shard(path, leaves):
            if (number, chunk.box) not in promised[shard]:
                # Not promised, or there twice.
                raise UserError(
                    f"{path} and {index_path(prefix)} do not belong together, or one is damaged: a chunk of "
                    f"{quote(leaves[number].name)} at {chunk.box} is there twice or not in the index."
                )
            promised[shard].remove((number, chunk.box))
            chunks[number].append(chunk)
        for number, box in promised[shard]:
            raise UserError(
                f"{path} is damaged: the chunk of {quote(leaves[number].name)} at {box} is missing."
            )
    arrays = {}
    for leaf, leaf_chunks in zip(leaves, chunks, strict=True):
        problem = check_tiles(leaf.shape, [chunk.box for chunk in leaf_chunks])
        if problem is not None:
            raise UserError(f"{index_path(prefix)} is damaged: of {quote(leaf.name)}, {problem}.")
        arrays[leaf.name] = StoredArray(leaf.shape, leaf.dtype, tuple(leaf_chunks))
    return StoredArrays(arrays)


def _check_shards(prefix: Path, count: int) -> None:
    """Raise ``UserError`` unless that many shards are there."""
    for shard in range(count):
        path = shard_path(prefix, shard, count)
        if not is_file(path):
            raise UserError(f"{index_path(prefix)} asks for {count:,} data shards, and there is no {path}.")


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
                    raise UserError(f"{path} has version {quote(version)}; moeprobe reads version {VERSION}.")
            else:
                raise cursor.error(f"the key {quote(key)} is not known")
        cursor.finish()
    if count is None or leaves is None:
        raise UserError(f"{path} is no index of a V-MoE checkpoint: it lacks shard_count or index.")
    # Sorted as strings at each level: encoderblock_10 comes before encoderblock_2.
    leaves.sort(key=lambda leaf: leaf[0])
    in_order = [leaf for _, leaf in leaves]
    check_unique(path, [leaf.name for leaf in in_order])
    for leaf in in_order:
        if any(shard >= count for shard in leaf.shards):
            raise UserError(
                f"{path} is damaged: a chunk of {quote(leaf.name)} is in a shard beyond the {count:,}."
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
    meta = cursor.nested_cursor()
    meta.items(4)
    shape = read_shape(meta)
    dtype = read_dtype(meta, shape)
    meta.boolean()  # whether JAX held the type to be weak: nothing to us
    if list(meta.entries()):
        raise meta.error("an array has attributes that are not known")
    meta.finish()
    boxes = tuple(_read_box(cursor.nested_cursor(), shape) for _ in range(cursor.items()))
    shards = tuple(cursor.integer() for _ in range(cursor.items(len(boxes))))
    cursor.finish()
    return _Leaf(name, shape, dtype, boxes, shards)


def _read_box(cursor: Cursor, shape: tuple[int, ...]) -> Box:
    """Read a slice per axis, which must be within the array."""
    cursor.items(len(shape))
    box = []
    for size in shape:
        bounds = cursor.nested_cursor()
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
        has_mark = False
        for key in cursor.entries():
            if key == MARK:
                has_mark = cursor.boolean()
                continue
            # A number without leading zeros, or two keys could mean the same array.
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or int(key) >= len(leaves):
                raise cursor.error(f"{quote(key)} is no number of an array of the index")
            for _ in range(cursor.items()):
                yield int(key), _read_chunk(cursor, path, leaves[int(key)])
        cursor.finish()
        if not has_mark:
            raise UserError(f"{path} is no data shard of a V-MoE checkpoint.")


def _read_chunk(cursor: Cursor, path: Path, leaf: _Leaf) -> Chunk:
    """Read a list of flat pieces, and the box that they fill."""
    cursor.items(2)
    pieces = []
    for _ in range(cursor.items()):
        shape, dtype, piece = read_piece(cursor, path)
        flat = len(shape) == 1 and shape[0] * DTYPES[dtype].itemsize == piece.stop - piece.start
        if dtype != leaf.dtype or not flat:
            raise cursor.error(
                f"a piece of {quote(leaf.name)} has another type, shape or size than it should"
            )
        pieces.append(piece)
    chunk = Chunk(_read_box(cursor.extension(SLICES), leaf.shape), tuple(pieces))
    num_bytes = sum(piece.stop - piece.start for piece in pieces)
    if num_bytes != volume(chunk.box) * DTYPES[leaf.dtype].itemsize:
        raise cursor.error(f"a chunk of {quote(leaf.name)} at {chunk.box} has {num_bytes:,} bytes")
    return chunk


# Reads the folders that Orbax writes, with TensorStore: zarr arrays, in an OCDBT store or in folders of their own.
#
# TensorStore is an optional extra (``orbax``) and needs neither Orbax nor JAX. The name of an array is the keys on the
# way to it, joined by dots; V-MoE's keys have none of their own.
#
# Source: the layout of orbax-checkpoint 0.12 (``PyTreeCheckpointHandler``; OCDBT or not, zarr 2 or 3).

# What says that an array begins, and the driver that reads it.
_DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}
_OCDBT = "manifest.ocdbt"
# Parameters hardly shrink when they are packed; a folder that claims to unpack to more is no honest one.
_MOST_UNPACKED = 1000
# What a chunk may have beyond its array's own size.
_MOST_CHUNK = 2**26
_PROBLEMS = (ValueError, RuntimeError, OSError, TypeError, LookupError, MemoryError, NotImplementedError)


@dataclass(frozen=True)
class ZarrArray:
    """An array in a store of TensorStore's; see ``arrays.AnyArray``."""

    shape: tuple[int, ...]
    dtype: str
    name: str
    store: Any

    def read(self) -> NDArray[Any]:
        """Return the array.

        Raises:
            UserError: a part of it is missing or damaged.
        """
        try:
            array = self.store.read().result()
        except _PROBLEMS as error:
            raise _error(f"Cannot read {quote(self.name)}", error) from None
        return array.view(BFLOAT16) if self.dtype == "bfloat16" else np.asarray(array)


def is_orbax(folder: Path) -> bool:
    """Whether a folder holds arrays in a layout of Orbax's."""
    if not is_folder(folder):
        return False
    return is_file(folder / _OCDBT) or any(
        is_file(child / mark) for child in folder.iterdir() for mark in _DRIVERS
    )


def read_orbax(folder: Path) -> StoredArrays:
    """Return what a folder holds; its arrays are described and not read yet.

    A step of a checkpoint manager, whose items are folders in it, means its one item with arrays.

    Raises:
        UserError: it is no such folder, TensorStore is not installed, or the store is damaged.
    """
    try:
        items = [folder] if is_orbax(folder) else sorted(filter(is_orbax, folder.iterdir()))
    except OSError as error:
        raise UserError(f"Cannot read {folder}: {error.strerror or error}.") from None
    if len(items) != 1:
        listed = f"several: {', '.join(item.name for item in items)}; name one" if items else "none"
        raise UserError(f"{folder} is a folder; checkpoints that Orbax wrote in it: {listed}.")
    check_regular_files(items[0], "**/*")
    try:
        import tensorstore
    except ImportError:
        raise missing_package(f"{items[0]}, a checkpoint of Orbax,", "TensorStore", "orbax") from None
    try:
        return _read(items[0], tensorstore)
    except _PROBLEMS as error:
        raise _error(f"Cannot read {items[0]} as a checkpoint of Orbax's", error) from None


def _read(folder: Path, tensorstore: Any) -> StoredArrays:
    base = {"driver": "file", "path": f"{resolve(folder)}/"}
    packed = is_file(folder / _OCDBT)
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base} if packed else base).result()
    arrays: dict[str, ZarrArray] = {}
    non_arrays: list[str] = []
    for key in sorted(store.list().result()):
        key_path, _, mark = key.decode(errors="replace").rpartition("/")
        # Next to the store Orbax keeps folders of its own, with an underscore or without any arrays in them.
        if mark not in _DRIVERS or not key_path:
            continue
        name = key_path.replace(".", "/")
        _check_description(folder / key.decode(errors="replace"), store.read(key).result().value)
        spec = {"driver": _DRIVERS[mark], "kvstore": (store / f"{key_path}/").spec().to_json()}
        # A missing chunk is damage, and must not be read as zeros.
        opened = tensorstore.open(spec | {"fill_missing_data_reads": False}, open=True).result()
        if opened.dtype.name in DTYPES:
            _check_chunks(folder, name, opened)
            arrays[name] = ZarrArray(tuple(opened.shape), opened.dtype.name, name, opened)
        else:
            non_arrays.append(name)
    unpacked = sum(math.prod(array.shape) * DTYPES[array.dtype].itemsize for array in arrays.values())
    size = sum(path.stat().st_size for path in folder.rglob("*") if is_file(path))
    if unpacked > _MOST_UNPACKED * size:
        raise UserError(f"{folder} is damaged: its {size:,} bytes should unpack to {unpacked:,}.")
    return StoredArrays(arrays, tuple(non_arrays))


def _check_description(path: Path, content: bytes) -> None:
    """Raise ``UserError`` if an array's JSON is longer or deeper than any: TensorStore would overflow the stack."""
    if len(content) > JSON_LIMIT or _is_deeper(parse_json(path, content), MOST_LEVELS):
        raise UserError(
            f"{path} is damaged: the description of an array has at most {JSON_LIMIT:,} bytes and {MOST_LEVELS} levels."
        )


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def _check_chunks(folder: Path, name: str, opened: Any) -> None:
    """Raise ``UserError`` if a chunk is much larger than its array: TensorStore allocates all of it."""
    itemsize = DTYPES[opened.dtype.name].itemsize
    layout = opened.chunk_layout
    chunk = max(math.prod(grid.shape or ()) for grid in (layout.read_chunk, layout.write_chunk)) * itemsize
    if chunk > max(math.prod(opened.shape) * itemsize, _MOST_CHUNK):
        raise UserError(
            f"{folder} is damaged: a chunk of {quote(name)} should hold {chunk:,} bytes, and it is {opened.shape}."
        )


def _error(problem: str, error: BaseException) -> UserError:
    """Return TensorStore's message as one sentence, without its source locations."""
    message = " ".join(str(error).split()).partition(" [")[0] or type(error).__name__
    return UserError(f"{problem}: {''.join(c for c in message if c.isprintable())[:300].rstrip('.')}.")


def read_flax(path: Path) -> StoredArrays:
    """Return what a flax msgpack file holds; its arrays are checked and not read yet.

    Raises:
        UserError: the file is truncated, damaged, or of another format.
    """
    with File(path) as file:
        cursor = Cursor(file)
        leaves = list(_flax_leaves(cursor, path, ()))
        cursor.finish()
    check_unique(path, [name for name, _ in leaves])
    return StoredArrays(
        arrays={name: array for name, array in leaves if array is not None},
        others=tuple(name for name, array in leaves if array is None),
    )


def _flax_leaves(
    cursor: Cursor, path: Path, above: tuple[str, ...]
) -> Iterator[tuple[str, StoredArray | None]]:
    """Yield the name and array of each entry of a map; None for entries that are no arrays."""
    if len(above) > MOST_LEVELS:
        raise cursor.error("maps are nested too deeply")
    for key in cursor.entries():
        key_path = (*above, key)
        kind = cursor.kind()
        if kind == "map":
            yield from _flax_leaves(cursor, path, key_path)
        elif cursor.is_extension(NDARRAY):
            yield "/".join(key_path), read_ndarray(cursor, path)
        else:
            cursor.skip()
            if kind != "nil":
                yield "/".join(key_path), None
