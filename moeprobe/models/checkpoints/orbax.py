"""Reads the folders that Orbax writes, with TensorStore: zarr arrays, in an OCDBT store or in folders of their own.

TensorStore is an optional extra (``orbax``) and needs neither Orbax nor JAX. The name of an array is the keys on the
way to it, joined by dots; V-MoE's keys have none of their own.

Source: the layout of orbax-checkpoint 0.12 (``PyTreeCheckpointHandler``; OCDBT or not, zarr 2 or 3).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.arrays import BFLOAT16, DTYPES, Stored
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import check_regular_files

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
            raise _error(f"Cannot read {quoted(self.name)}", error) from None
        return array.view(BFLOAT16) if self.dtype == "bfloat16" else np.asarray(array)


def is_orbax(folder: Path) -> bool:
    """Whether a folder holds arrays in a layout of Orbax's."""
    if not folder.is_dir():
        return False
    return (folder / _OCDBT).is_file() or any(
        (child / mark).is_file() for child in folder.iterdir() for mark in _DRIVERS
    )


def read_orbax(folder: Path) -> Stored:
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
        raise UserError(
            f"{items[0]} was written by Orbax; reading it needs TensorStore: pip install 'moeprobe[orbax]'."
        ) from None
    try:
        return _read(items[0], tensorstore)
    except _PROBLEMS as error:
        raise _error(f"Cannot read {items[0]} as a checkpoint of Orbax's", error) from None


def _read(folder: Path, tensorstore: Any) -> Stored:
    base = {"driver": "file", "path": f"{folder.resolve()}/"}
    packed = (folder / _OCDBT).is_file()
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base} if packed else base).result()
    arrays: dict[str, ZarrArray] = {}
    others: list[str] = []
    for key in sorted(store.list().result()):
        place, _, mark = key.decode(errors="replace").rpartition("/")
        # Next to the store Orbax keeps folders of its own, with an underscore or without any arrays in them.
        if mark not in _DRIVERS or not place:
            continue
        name = place.replace(".", "/")
        spec = {"driver": _DRIVERS[mark], "kvstore": (store / f"{place}/").spec().to_json()}
        opened = tensorstore.open(spec | {"fill_missing_data_reads": False}, open=True).result()
        if opened.dtype.name in DTYPES:
            _check_chunks(folder, name, opened)
            arrays[name] = ZarrArray(tuple(opened.shape), opened.dtype.name, name, opened)
        else:
            others.append(name)
    unpacked = sum(math.prod(array.shape) * DTYPES[array.dtype].itemsize for array in arrays.values())
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if unpacked > _MOST_UNPACKED * size:
        raise UserError(f"{folder} is damaged: its {size:,} bytes should unpack to {unpacked:,}.")
    return Stored(arrays, tuple(others))


def _check_chunks(folder: Path, name: str, opened: Any) -> None:
    """Raise ``UserError`` if a chunk is much larger than its array: TensorStore makes room for all of it."""
    itemsize = DTYPES[opened.dtype.name].itemsize
    layout = opened.chunk_layout
    chunk = max(math.prod(one.shape or ()) for one in (layout.read_chunk, layout.write_chunk)) * itemsize
    if chunk > max(math.prod(opened.shape) * itemsize, _MOST_CHUNK):
        raise UserError(
            f"{folder} is damaged: a chunk of {quoted(name)} should hold {chunk:,} bytes, and it is {opened.shape}."
        )


def _error(problem: str, error: BaseException) -> UserError:
    """Return TensorStore's message as one sentence, without what follows of its sources."""
    said = " ".join(str(error).split()).partition(" [")[0] or type(error).__name__
    return UserError(f"{problem}: {''.join(c for c in said if c.isprintable())[:300].rstrip('.')}.")
