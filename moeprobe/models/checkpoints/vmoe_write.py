"""Writes the checkpoints that ``vmoe_files`` reads: data shards first, the index last, so that it says all is there.

Experts are cut along their first axis over the shards, as the experts' mesh axis cuts them in V-MoE's program; every
other array is one chunk in one shard, the one that holds least so far. Chunks of more than ``MOST_CHUNK_BYTES`` are cut
further, along their longest axis.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.arrays import DTYPES, NDARRAY, Box, region_of, volume
from moeprobe.models.checkpoints.vmoe_files import LEAF, MARK, SLICES, VERSION, index_path, shard_path
from moeprobe.runtime.files import atomic_file, is_folder

MOST_CHUNK_BYTES = 1 << 28
# The format allows 2^30; msgpack copies a piece three times before it is written.
_MOST_PIECE_BYTES = 1 << 24
_EXPERTS = re.compile(r".*/Moe/Mlp/.*")
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def existing_files(prefix: Path) -> list[Path]:
    """Return the files of a checkpoint that is there already."""
    pattern = re.compile(re.escape(prefix.name) + r"\.(index|data-\d{5,}-of-\d{5,})")
    entries = prefix.parent.iterdir() if is_folder(prefix.parent) else iter(())
    return sorted(path for path in entries if pattern.fullmatch(path.name))


def write_vmoe(
    prefix: Path,
    shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
    array: Callable[[str], NDArray[Any]],
    *,
    shards: int = 1,
    most_chunk_bytes: int = MOST_CHUNK_BYTES,
) -> list[Path]:
    """Write arrays as a checkpoint and return its files; an earlier checkpoint of the prefix is replaced.

    Args:
        prefix: of the files.
        shapes: shape and type of each array, by a name whose levels are joined by ``/``.
        array: returns an array by name; called for one shard after another, so that not all need be there at once.
        shards: number of data shards.
        most_chunk_bytes: chunks that are larger are cut.

    Raises:
        UserError: a file cannot be written.
    """
    names = sorted(shapes, key=lambda name: name.split("/"))
    cuts = {name: _boxes(name, *shapes[name], shards=shards, max_bytes=most_chunk_bytes) for name in names}
    shards_of: dict[str, list[int]] = {name: [] for name in names}
    loads = [0] * shards
    for name in names:
        for box in cuts[name]:
            lightest = loads.index(min(loads))
            shards_of[name].append(lightest)
            loads[lightest] += volume(box) * shapes[name][1].itemsize
    earlier = existing_files(prefix)
    if index_path(prefix) in earlier:
        _remove([index_path(prefix)])
    files = []
    for shard in range(shards):
        path = shard_path(prefix, shard, shards)
        content = {
            number: [
                box for box, box_shard in zip(cuts[name], shards_of[name], strict=True) if box_shard == shard
            ]
            for number, name in enumerate(names)
        }
        _write_shard(path, {number: boxes for number, boxes in content.items() if boxes}, names, array)
        files.append(path)
    _remove(path for path in earlier if path not in (*files, index_path(prefix)))
    leaves = {name: _leaf(*shapes[name], cuts[name], shards_of[name]) for name in names}
    index = {"shard_count": shards, "index": _nest(leaves), "version": VERSION}
    with atomic_file(index_path(prefix)) as temporary:
        temporary.write_bytes(_pack(index))
    return [*files, index_path(prefix)]


def _boxes(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, shards: int, max_bytes: int
) -> list[Box]:
    """Return the boxes that an array is cut into."""
    whole_box: Box = tuple((0, size) for size in shape)
    boxes = _cut(whole_box, 0, min(shards, shape[0])) if _EXPERTS.fullmatch(name) else [whole_box]
    finished: list[Box] = []
    while boxes:
        box = boxes.pop(0)
        if volume(box) * dtype.itemsize <= max_bytes or volume(box) <= 1:
            finished.append(box)
        else:
            sizes = [stop - start for start, stop in box]
            boxes[:0] = _cut(box, sizes.index(max(sizes)), 2)
    return finished


def _cut(box: Box, axis: int, parts: int) -> list[Box]:
    start, stop = box[axis]
    edges = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [(*box[:axis], bounds, *box[axis + 1 :]) for bounds in pairwise(edges)]


def _write_shard(
    path: Path, content: Mapping[int, list[Box]], names: list[str], array: Callable[[str], NDArray[Any]]
) -> None:
    packer = msgpack.Packer(autoreset=True)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(packer.pack_map_header(1 + len(content)))
        file.write(_pack(MARK) + _pack(True))
        for number, boxes in content.items():
            file.write(_pack(str(number)))
            file.write(packer.pack_array_header(len(boxes)))
            values = array(names[number])
            for box in boxes:
                flat = region_of(values, box).reshape(-1)
                step = _MOST_PIECE_BYTES // flat.itemsize
                pieces = [flat[start : start + step] for start in range(0, max(flat.size, 1), step)]
                file.write(packer.pack_array_header(2))
                file.write(packer.pack_array_header(len(pieces)))
                for piece in pieces:
                    packed = _pack([list(piece.shape), _NAMES[piece.dtype], piece.tobytes()])
                    file.write(packer.pack_ext_type(NDARRAY, packed))
                file.write(packer.pack_ext_type(SLICES, _slices(box)))


def _leaf(
    shape: tuple[int, ...], dtype: np.dtype[Any], boxes: list[Box], shard_numbers: list[int]
) -> msgpack.ExtType:
    meta = _pack([list(shape), _NAMES[dtype], False, {}])
    return msgpack.ExtType(LEAF, _pack([meta, [_slices(box) for box in boxes], shard_numbers]))


def _slices(box: Box) -> bytes:
    return _pack([_pack([start, stop, None]) for start, stop in box])


def _nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return names with ``/`` as maps in maps."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *levels, last = name.split("/")
        node = tree
        for level in levels:
            node = node.setdefault(level, {})
        node[last] = leaf
    return tree


def _pack(value: Any) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True)
    assert packed is not None
    return packed


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise UserError(f"Cannot replace {path}: {error.strerror or error}.") from error
