"""Data sets by what a user calls them: ``name`` or ``name:location``."""

from collections import Counter
from typing import Any

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, Dataset
from moeprobe.runtime.catalog import DATA, unknown
from moeprobe.runtime.files import expanded, is_file, is_folder
from moeprobe.runtime.keywords import checked

# Data sets that need no files of the user's.
_BUILT_IN = ("checkerboard", "digits", "shapes")
# Those whose location is a name or a pattern.
_NO_PATH = ("huggingface", "huggingface_stream", "webdataset")
_TEXTS = (".txt", ".jsonl", ".csv", ".json")


def named(name: str) -> tuple[Any, str | None]:
    """Return the class of a data set and its location.

    Raises:
        UserError: there is no such data set; where the name is that of a file or folder, the sentence says so.
    """
    kind, _, location = name.partition(":")
    if kind in DATA:
        return DATA.get(kind), location or None
    path = expanded(name)
    if is_folder(path):
        raise UserError(f"There is no data set {name!r}, but a folder. Did you mean 'folder:{name}'?")
    if is_file(path):
        held = "text" if path.suffix in _TEXTS else "webdataset" if path.suffix == ".tar" else None
        hint = f"Did you mean '{held}:{name}'?" if held else "Give its folder: folder:PATH."
        raise UserError(f"There is no data set {name!r}, but a file. {hint}")
    raise UserError(unknown("data set", kind, DATA.names()))


@checked
def open_data(name: str, *, split: str = "test") -> Dataset:
    """Open a data set by ``name`` or ``name:location``, e.g. ``digits``, ``folder:photos`` or ``text:lines.txt``.

    Raises:
        UserError: there is no such data set, split or location, or two of its examples have the same name.
    """
    kind, location = named(name)
    dataset: Dataset = kind(split=split, location=location)
    if len(set(dataset.image_ids)) < len(dataset.image_ids):
        twice, number = Counter(dataset.image_ids).most_common(1)[0]
        raise UserError(
            f"{name} holds {number} examples called {twice!r}, and sums are kept by name; give each a name of its own."
        )
    return dataset


def check_data(name: str, *, split: str) -> None:
    """Raise what ``open_data`` raises where a name, a place or a split is mistyped, without reading data that fit."""
    named(name)
    kind, _, location = name.partition(":")
    if kind in _NO_PATH:
        return
    missing = not expanded(location).exists() if location else kind not in _BUILT_IN
    if missing or split not in SPLITS:
        open_data(name, split=split)
