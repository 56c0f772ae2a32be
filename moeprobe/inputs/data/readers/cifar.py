"""What CIFAR-10 and CIFAR-100 share: A. Krizhevsky's two published formats, and the splits.

Either version holds the same images in the same order (3072 bytes an image: red plane, green plane, blue plane; rows
of 32), so an image has one name in both versions. The binary version is preferred where both exist.

Splits follow V-MoE's fine-tuning recipe: train is the first 98 % of the training images, val the other 2 %, test the
test batch; in the order of the files, which is not TFDS's own.
"""

import math
import pickle
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, check_split, require_folder
from moeprobe.runtime.files import is_file, read_bytes

Labels = NDArray[np.int64]

_PIXELS = 3 * 32 * 32
_TRAIN_PERCENT = 98
# Bytes of a file of images (the largest published one has 154 million), and of one of names.
_MOST, _LONGEST = 2**30, 2**20


@dataclass(frozen=True)
class Version:
    """One published form of one data set: where its files are, and what they call things."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    # Python version: the key of the labels, and of their names. Binary version: empty.
    label_key: bytes = b""
    names_key: bytes = b""
    # Python version: the key of the labels of groups of classes, where there are any.
    group_key: bytes = b""
    # Binary version: bytes before the pixels of a record; the last of them is the label, one before it that of a group.
    num_label_bytes: int = 0


class Cifar(ImageDataset):
    """One split of CIFAR, held in memory as the published bytes."""

    name: ClassVar[str]
    num_labels: ClassVar[int]
    versions: ClassVar[tuple[Version, ...]]  # in order of preference

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        layout = " or ".join(version.folder for version in self.versions)
        root = require_folder(location, name=self.name, layout=layout)
        folder, version = self._find(root)
        part = "test" if split == "test" else "train"
        pixels, labels, groups = _read(folder, version, version.test if part == "test" else version.train)
        cut = round(len(labels) * _TRAIN_PERCENT / 100)
        rows = {"train": slice(cut), "val": slice(cut, None), "test": slice(None)}[split]
        if not labels[rows].size:
            raise UserError(f"The split {split!r} of {str(folder)!r} holds no images.")
        if labels.max() >= self.num_labels:
            raise UserError(f"{str(folder)!r} has labels outside 0..{self.num_labels - 1}.")
        # Copied: a view of 2 % would keep the whole in memory, and send it to every worker.
        self._pixels, self._labels = pixels[rows].copy(), labels[rows].copy()
        self.image_ids = [f"{part}/{row:05d}" for row in range(len(labels))[rows]]
        self.class_names = self._class_names(folder, version)
        self.superclasses = self._superclasses(folder, labels, groups)

    def example(self, index: int) -> Example:
        """Return image ``index`` of the split, 32x32."""
        planes = self._pixels[index].reshape(3, 32, 32)
        image = Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))
        return Example(image, self.image_ids[index], label=int(self._labels[index]))

    def _find(self, root: Path) -> tuple[Path, Version]:
        """Return the first version that is there: below ``root``, or ``root`` itself."""
        for version in self.versions:
            for folder in (root / version.folder, root):
                if any(is_file(folder / file) for file in (*version.train, *version.test)):
                    return folder, version
        folders = " or ".join(version.folder for version in self.versions)
        raise UserError(f"{str(root)!r} holds neither {folders} nor their files, which {self.name!r} needs.")

    def _superclasses(self, folder: Path, labels: Labels, groups: Labels | None) -> list[int] | None:
        """Return the group of each class; None where there are none, or a class has no image."""
        if groups is None or len(np.unique(labels)) < self.num_labels:
            return None
        _, first = np.unique(labels, return_index=True)
        group_of = groups[first]
        if (torn := labels[group_of[labels] != groups]).size:
            raise UserError(
                f"{str(folder)!r} has images of class {torn[0]} in two superclasses; it is damaged."
            )
        return group_of.tolist()

    def _class_names(self, folder: Path, version: Version) -> tuple[str, ...]:
        """Return the published names; "0", "1", ... where the file of names is not there."""
        path = folder / version.names
        if not is_file(path):
            return tuple(str(label) for label in range(self.num_labels))
        try:
            if version.names_key:
                entries = _field(read_pickle(path), version.names_key, path)
                names = [name.decode() if isinstance(name, bytes) else str(name) for name in entries]
            else:
                names = read_bytes(path, limit=_LONGEST).decode("utf-8").split()
        except UnicodeDecodeError:
            raise UserError(f"The names in {str(path)!r} are not UTF-8; download the file again.") from None
        if len(names) != self.num_labels:
            raise UserError(f"{str(path)!r} names {len(names)} classes; there are {self.num_labels}.")
        return tuple(names)


def _read(folder: Path, version: Version, files: tuple[str, ...]) -> tuple[np.ndarray, Labels, Labels | None]:
    """Return pixels (images, 3072) uint8, labels and groups (images,) of all ``files``.

    Raises:
        UserError: a file is missing, or the number of its records is wrong.
    """
    read: Callable[[Path, Version], tuple[np.ndarray, Labels, Labels | None]]
    read = _read_binary if version.num_label_bytes else _read_python
    batches = []
    for file in files:
        path = folder / file
        if not is_file(path):
            raise UserError(f"There is no file {str(path)!r}; {', '.join(files)} belong together.")
        batches.append(read(path, version))
    pixels, labels, groups = zip(*batches, strict=True)
    present = [group for group in groups if group is not None]
    return np.concatenate(pixels), np.concatenate(labels), np.concatenate(present) if present else None


def _read_binary(path: Path, version: Version) -> tuple[np.ndarray, Labels, Labels | None]:
    record = version.num_label_bytes + _PIXELS
    size = path.stat().st_size
    if size > _MOST:
        raise UserError(f"{str(path)!r} has {size:,} bytes, more than any of CIFAR's files.")
    if size == 0 or size % record:
        raise UserError(f"{str(path)!r} has {size} bytes, which is no multiple of a record's {record}.")
    try:
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    *groups, labels = records[:, : version.num_label_bytes].T.astype(np.int64)
    return records[:, version.num_label_bytes :], labels, groups[-1] if groups else None


def _read_python(path: Path, version: Version) -> tuple[np.ndarray, Labels, Labels | None]:
    batch = read_pickle(path)
    pixels = _field(batch, b"data", path)
    labels = _labels(batch, version.label_key, path, pixels)
    grouped = isinstance(batch, dict) and version.group_key in batch
    groups = _labels(batch, version.group_key, path, pixels) if grouped else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise UserError(f"The data of {str(path)!r} must be an array of bytes, {_PIXELS} an image.")
    return pixels, labels, groups


def _labels(batch: object, key: bytes, path: Path, pixels: Sized) -> Labels:
    """Return the labels called ``key``, one an image."""
    labels = _field(batch, key, path)
    if len(labels) != len(pixels):
        raise UserError(f"{str(path)!r} has {len(pixels)} images but {len(labels)} labels.")
    if not all(isinstance(label, int) and 0 <= label <= 255 for label in labels):
        raise UserError(f"The labels of {str(path)!r} must be small integers.")
    return np.array(labels, dtype=np.int64)


def _field(batch: object, key: bytes, path: Path) -> list | np.ndarray:
    """Return the list or array called ``key``."""
    value = batch.get(key) if isinstance(batch, dict) else None
    if not isinstance(value, list | np.ndarray):
        raise UserError(f"{str(path)!r} holds no {key.decode()!r}, so it is not one of CIFAR's files.")
    return value


# Reads the pickles of CIFAR's python version without executing anything in them.
#
# A pickle is a program: it can import and call whatever it names. This reader admits the three names by which an array
# is spelled, and puts records of its own in their place, so that not even NumPy's unpickling runs; any other name
# ends the reading.

_ELEMENTS = {"u1": np.uint8, "i8": np.int64}


def read_pickle(path: Path) -> object:
    """Return the content of ``path``: containers, strings (as bytes), numbers, arrays of bytes or integers.

    Raises:
        UserError: the file is damaged, or asks for anything else.
    """
    try:
        with path.open("rb") as file:
            return _arrays(_Reader(file, path).load())
    except UserError:
        raise
    except Exception as error:  # damaged opcodes make the reader raise almost anything
        raise UserError(f"{str(path)!r} is damaged, or not one of CIFAR's python files.") from error


class _Dtype:
    """Takes the place of ``numpy.dtype(code, align, copy)``."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.element = _ELEMENTS[code.decode() if isinstance(code, bytes) else code]

    def __setstate__(self, state: tuple) -> None:
        if state[1] in (">", b">"):
            raise ValueError("big-endian")


class _Array:
    """Takes the place of ``numpy.ndarray``, and of the function that makes an empty one to be filled."""

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise TypeError("not an array of numbers")
        values = np.frombuffer(raw, dtype=dtype.element)
        if math.prod(shape) != values.size:
            raise ValueError("shape and size differ")
        self.values = values.reshape(shape, order="F" if is_fortran else "C")


class _Reader(pickle.Unpickler):
    # Python 2 wrote the published files with an old NumPy; a new NumPy spells the same function otherwise.
    _ADMITTED = {  # noqa: RUF012 - read only
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        admitted = self._ADMITTED.get((module, name))
        if admitted is None:
            self._refuse(f"{module}.{name}")
        return admitted

    def persistent_load(self, pid: Any) -> NoReturn:
        self._refuse(f"object {pid!r}")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"{str(self._path)!r} asks for {what}, which none of CIFAR's files needs: nothing of it was run; "
            "download the file again."
        )


def _arrays(value: Any) -> Any:
    """Return ``value`` with arrays instead of their placeholder records (dictionaries only)."""
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value.values if isinstance(value, _Array) else value
