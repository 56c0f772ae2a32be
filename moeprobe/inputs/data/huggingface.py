"""Image data sets in the form of Hugging Face's library ``datasets`` (optional: ``moeprobe[huggingface]``).

``huggingface:LOCATION``, where LOCATION is, in this order,

* a folder that ``save_to_disk`` wrote, of a ``DatasetDict`` or of one ``Dataset``;
* a folder of parquet files, one split per word of their names (``train-00000-of-00001.parquet``, ``test/0.parquet``);
* the name of a data set on the hub (``uoft-cs/cifar10``): in the local cache, or with ``--download`` fetched.

Code that a data set brings along is never run.
"""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, as_labels, check_split
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.characters import quoted
from moeprobe.runtime.files import check_regular_files, expanded, is_folder
from moeprobe.runtime.hub import HOW, local_unless_allowed, may_download

# What a data set may call a split; the first that is there is taken.
_SPLITS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
# What ``save_to_disk`` leaves, of several splits or of one.
_SAVED = ("dataset_dict.json", "state.json")
# Which column is meant where there are several of its kind.
_IMAGE_COLUMNS = ("image", "img", "pixel_values")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


class Huggingface(ImageDataset):
    """A data set of Hugging Face's ``datasets``: saved to disk, parquet files, or from the hub.

    Takes the column of type ``Image`` and the one of type ``ClassLabel``; without the latter, the images have no
    labels, and a label of -1 (the hub's sign for a hidden one) is none. ``val`` also goes by ``validation`` and
    ``valid``. A single ``Dataset`` is the split it says it is, or else ``test``. Image ids are ``split/index``.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        datasets = _library()
        if not location:
            raise UserError("'huggingface' needs a folder or a name: write huggingface:PATH_OR_NAME.")
        parts = _by_split(_load(datasets, location))
        check_split(split, tuple(parts))
        rows = parts[split]
        columns = rows.features
        images = [name for name, kind in columns.items() if isinstance(kind, datasets.Image)]
        labels = [name for name, kind in columns.items() if isinstance(kind, datasets.ClassLabel)]
        if not images:
            raise UserError(f"{location!r} has no column of images; its columns are {', '.join(columns)}.")
        if len(rows) == 0:
            raise UserError(f"The split {split!r} of {location!r} is empty.")
        self._image = _choose(images, _IMAGE_COLUMNS, kind="images", location=location)
        self._label = _choose(labels, _LABEL_COLUMNS, kind="labels", location=location) if labels else None
        self.class_names = tuple(columns[self._label].names) if self._label else None
        wanted = [self._image] + ([self._label] if self._label else [])
        # Undecoded: moeprobe's reader treats transparency, 16 bits and EXIF alike for every data set.
        self._rows = rows.select_columns(wanted).cast_column(self._image, datasets.Image(decode=False))
        self._location = location
        self.image_ids = [f"{split}/{index}" for index in range(len(rows))]

    def example(self, index: int) -> Example:
        """Return row ``index`` of the split."""
        row = self._rows[index]
        name = f"{self.image_ids[index]!r} of {self._location!r}"
        stored = row[self._image] or {}
        if stored.get("bytes") is not None:
            image = open_rgb(io.BytesIO(stored["bytes"]), name=name)
        elif stored.get("path"):
            image = open_rgb(Path(stored["path"]), name=repr(stored["path"]))
        else:
            raise UserError(f"The image {name} is missing.")
        label = row[self._label] if self._label else None
        return Example(image, self.image_ids[index], label=None if label is None or label < 0 else label)

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every row; only their column is read."""
        column = (
            self._rows.select_columns([self._label])[:][self._label] if self._label else [None] * len(self)
        )
        return as_labels(column).clip(min=-1)


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "'huggingface' needs the package datasets: pip install 'moeprobe[huggingface]'."
        ) from error
    return datasets


def _load(datasets: Any, location: str) -> Any:
    """Return the ``DatasetDict`` or ``Dataset`` at ``location``.

    Raises:
        UserError: there is none, the hub cannot be reached, or it needs code of its own.
    """
    folder = expanded(location)
    if is_folder(folder):
        check_regular_files(folder, "**/*")
    try:
        with _quiet(datasets), local_unless_allowed():
            if is_folder(folder) and any((folder / name).is_file() for name in _SAVED):
                return datasets.load_from_disk(str(folder))
            if is_folder(folder):
                # By format, not by path: a folder may hold a script that loading by path could run.
                return datasets.load_dataset("parquet", data_dir=str(folder))
            return datasets.load_dataset(location)
    except Exception as error:  # files, network, hub and formats: each has errors of its own
        if not is_folder(folder) and isinstance(error, OSError) and not may_download():
            raise UserError(
                f"There is no folder {quoted(location)}, and no data set of that name in the local cache; {HOW}."
            ) from None
        kind = (
            "folder of saved data or parquet files"
            if is_folder(folder)
            else "folder, or data set of the hub,"
        )
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
        raise UserError(f"The {kind} {quoted(location)} cannot be loaded: {reason}.") from error


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Hide the library's progress bars where nobody watches a terminal."""
    hide = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if hide:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            datasets.enable_progress_bars()


def _by_split(loaded: Any) -> dict[str, Any]:
    """Return moeprobe's name of each split -> its rows."""
    parts = loaded if isinstance(loaded, dict) else {str(loaded.split or "test"): loaded}
    return {
        split: next(parts[name] for name in names if name in parts)
        for split, names in _SPLITS.items()
        if any(name in parts for name in names)
    }


def _choose(names: list[str], preferred: tuple[str, ...], *, kind: str, location: str) -> str:
    """Return the one column of a kind, or the one with an accustomed name."""
    if len(names) == 1:
        return names[0]
    for name in preferred:
        if name in names:
            return name
    raise UserError(f"{location!r} has several columns of {kind}: {', '.join(names)}; keep only one.")
