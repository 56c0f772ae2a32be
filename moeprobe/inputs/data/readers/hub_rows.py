"""Shared by ``huggingface`` and ``huggingface_stream``: the location and content of rows of ``datasets``."""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, first_line
from moeprobe.inputs.data.base import Example, by_split
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.characters import quote
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import check_regular_files, expand, is_file, is_folder
from moeprobe.runtime.hub import HOW, local_unless_allowed, may_download

# What ``save_to_disk`` leaves, of several splits or of one.
_SAVED = ("dataset_dict.json", "state.json")
# Which column is meant where there are several of its kind.
_IMAGE_COLUMNS = ("image", "img", "pixel_values")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


@dataclass(frozen=True)
class Columns:
    """The columns of a split that are read.

    Attributes:
        image: column of the images.
        label: column of the labels; None = they have none.
        class_names: names in label order; None where there are no labels.
    """

    image: str
    label: str | None
    class_names: tuple[str, ...] | None

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [self.image] + ([self.label] if self.label else [])

    def example(self, row: Mapping[str, Any], image_id: str, *, location: str) -> Example:
        """Return the image of a row, whose image is not decoded yet.

        Raises:
            UserError: it is missing, or cannot be read.
        """
        name = f"{image_id!r} of {location!r}"
        stored = row[self.image] or {}
        if stored.get("bytes") is not None:
            image = open_rgb(io.BytesIO(stored["bytes"]), name=name)
        elif stored.get("path"):
            image = open_rgb(Path(stored["path"]), name=repr(stored["path"]))
        else:
            raise UserError(f"The image {name} is missing.")
        label = row[self.label] if self.label else None
        return Example(image, image_id, label=None if label is None or label < 0 else label)


def find_columns(datasets: Any, features: Mapping[str, Any], location: str) -> Columns:
    """Return the columns to read: of images by their type, of labels likewise, by an accustomed name if several.

    Raises:
        UserError: there is no column of images, or it is not clear which is meant.
    """
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images:
        raise UserError(f"{location!r} has no column of images; its columns are {', '.join(features)}.")
    image = _choose(images, _IMAGE_COLUMNS, kind="images", location=location)
    label = _choose(labels, _LABEL_COLUMNS, kind="labels", location=location) if labels else None
    return Columns(image, label, tuple(features[label].names) if label else None)


def library() -> Any:
    """Return the module ``datasets``.

    Raises:
        UserError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing_package("huggingface", "datasets", "huggingface") from error
    return datasets


def is_saved(location: str) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return any(is_file(expand(location) / name) for name in _SAVED)


def load(datasets: Any, location: str, **more: Any) -> Any:
    """Return the ``DatasetDict`` or ``Dataset`` at ``location``.

    Args:
        datasets: the library.
        location: a folder, or a name on the hub.
        more: what ``load_dataset`` is given beyond that; nothing of it reaches what ``save_to_disk`` wrote.

    Raises:
        UserError: there is none, the hub cannot be reached, or it needs code of its own.
    """
    folder = expand(location)
    if is_folder(folder):
        check_regular_files(folder, "**/*")
    try:
        with _quiet(datasets), local_unless_allowed():
            if is_folder(folder) and is_saved(location):
                return datasets.load_from_disk(str(folder))
            if is_folder(folder):
                # By format, not by path: a folder may hold a script that loading by path could run.
                return datasets.load_dataset("parquet", data_dir=str(folder), **more)
            return datasets.load_dataset(location, **more)
    except Exception as error:  # files, network, hub and formats: each has errors of its own
        if not is_folder(folder) and isinstance(error, OSError) and not may_download():
            raise UserError(
                f"There is no folder {quote(location)}, and no data set of that name in the local cache; {HOW}."
            ) from None
        kind = (
            "folder of saved data or parquet files"
            if is_folder(folder)
            else "folder, or data set of the hub,"
        )
        raise UserError(f"The {kind} {quote(location)} cannot be loaded: {reason(error)}.") from error


def reason(error: Exception) -> str:
    """Return the first line of what an error of the library says."""
    return first_line(error)[:300].rstrip(".")


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


def splits_of(loaded: Any) -> dict[str, Any]:
    """Return moeprobe's name of each split -> its rows."""
    return by_split(loaded if isinstance(loaded, dict) else {str(loaded.split or "test"): loaded})


def _choose(names: list[str], preferred: tuple[str, ...], *, kind: str, location: str) -> str:
    """Return the one column of a kind, or the one with an accustomed name."""
    if len(names) == 1:
        return names[0]
    for name in preferred:
        if name in names:
            return name
    raise UserError(f"{location!r} has several columns of {kind}: {', '.join(names)}; keep only one.")
