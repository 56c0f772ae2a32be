"""Reads a plain flax msgpack file: nested maps with whole arrays in them.

Source: the format of ``flax.serialization.to_bytes``; arrays are extension objects of code 1.
"""

from collections.abc import Iterator
from pathlib import Path

from moeprobe.models.checkpoints.arrays import NDARRAY, StoredArray, StoredArrays, read_ndarray, unique
from moeprobe.models.checkpoints.msgpack import Cursor, File

# Deeper than any state of a training; a file of nothing but brackets must not use up the stack.
MOST_LEVELS = 64


def read_flax(path: Path) -> StoredArrays:
    """Return what a flax msgpack file holds; its arrays are checked and not read yet.

    Raises:
        UserError: the file is truncated, damaged, or of another format.
    """
    with File(path) as file:
        cursor = Cursor(file)
        leaves = list(_leaves(cursor, path, ()))
        cursor.finish()
    unique(path, [name for name, _ in leaves])
    return StoredArrays(
        arrays={name: array for name, array in leaves if array is not None},
        others=tuple(name for name, array in leaves if array is None),
    )


def _leaves(cursor: Cursor, path: Path, above: tuple[str, ...]) -> Iterator[tuple[str, StoredArray | None]]:
    """Yield the name and array of each entry of a map; None for entries that are no arrays."""
    if len(above) > MOST_LEVELS:
        raise cursor.error("maps are nested too deeply")
    for key in cursor.entries():
        key_path = (*above, key)
        kind = cursor.kind()
        if kind == "map":
            yield from _leaves(cursor, path, key_path)
        elif cursor.is_extension(NDARRAY):
            yield "/".join(key_path), read_ndarray(cursor, path)
        else:
            cursor.skip()
            if kind != "nil":
                yield "/".join(key_path), None
