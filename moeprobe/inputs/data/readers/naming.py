"""Data sets by what a user calls them: ``name`` or ``name:location``."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, Dataset, Example, ImageDataset
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.catalog import DATA, describe_unknown
from moeprobe.runtime.files import expand, is_file, is_folder, status
from moeprobe.runtime.similar_paths import did_you_mean_path

# Data sets that need no files of the user's.
_BUILT_IN = ("checkerboard", "digits", "shapes")
# Those whose location is a name or a pattern.
_NO_PATH = ("huggingface", "huggingface_stream", "webdataset")
_TEXTS = (".txt", ".jsonl", ".csv", ".json")


def resolve_name(name: str) -> tuple[Any, str | None]:
    """Return the class of a data set and its location.

    Raises:
        UserError: there is no such data set; where a file or folder has this name, the sentence says so.
    """
    kind, _, location = name.partition(":")
    if kind in DATA:
        return DATA.get(kind), location or None
    path = expand(name)
    if is_folder(path):
        raise UserError(f"There is no data set {name!r}, but a folder. Did you mean 'folder:{name}'?")
    if is_file(path):
        kind_hint = "text" if path.suffix in _TEXTS else "webdataset" if path.suffix == ".tar" else None
        hint = f"Did you mean '{kind_hint}:{name}'?" if kind_hint else "Give its folder: folder:PATH."
        raise UserError(f"There is no data set {name!r}, but a file. {hint}")
    raise UserError(describe_unknown("data set", kind, DATA.names()))


@check_arguments
def open_data(name: str, *, split: str = "test") -> Dataset:
    """Open a data set by ``name`` or ``name:location``, e.g. ``digits``, ``folder:photos`` or ``text:lines.txt``.

    The digits that come with moeprobe have 360 test images of ten classes:

    >>> from moeprobe import api
    >>> digits = api.open_data("digits")
    >>> len(digits), digits.num_classes
    (360, 10)

    Raises:
        UserError: there is no such data set, split or location, or two of its examples have the same name.
    """
    kind, location = resolve_name(name)
    dataset: Dataset = kind(split=split, location=location)
    if len(set(dataset.image_ids)) < len(dataset.image_ids):
        twice, number = Counter(dataset.image_ids).most_common(1)[0]
        raise UserError(
            f"{name} holds {number} examples called {twice!r}, and sums are kept by name; give each a name of its own."
        )
    return dataset


def check_data(name: str, *, split: str) -> None:
    """Raise what ``open_data`` raises where a name, a place or a split is mistyped, without reading data that fit."""
    resolve_name(name)
    kind, _, location = name.partition(":")
    if kind in _NO_PATH:
        return
    path = location.partition("?")[0]
    missing = status(expand(path)) is None if path else kind not in _BUILT_IN
    if missing or split not in SPLITS:
        open_data(name, split=split)


# A handful of image files named one by one.


class Files(ImageDataset):
    """Image files of the user's own, without labels."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._paths = [Path(path) for path in paths]
        for path in self._paths:
            if not is_file(path):
                raise UserError(f"There is no image file {path}.{did_you_mean_path(path)}")
        self.image_ids = [str(path) for path in self._paths]
        self.class_names = None

    def example(self, index: int) -> Example:
        """Return image ``index``."""
        path = self._paths[index]
        return Example(open_rgb(path, name=str(path)), self.image_ids[index])
