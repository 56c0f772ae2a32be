"""A folder of images, with or without classes, with or without splits.

Three layouts, detected automatically::

    PATH/<split>/<class>/...    splits, where one of the folders is called train, val (validation, valid) or test
    PATH/<class>/...            classes, no splits
    PATH/*.jpg                  images without labels (likewise PATH/<split>/*.jpg)

The same images must never be both trained and judged on. Where there is a ``train`` but no ``val``, a tenth of the
training images is ``val``. Without splits, a tenth of the classes' images is ``test``, a tenth ``val``, the rest
``train``; ``all`` is all of them. A hash of its path says where an image belongs, so it stays there when others
come or go. ``PATH?val_fraction=0.2`` is another share for ``val``. Images without labels all form the split ``test``.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, by_split, check_split, require_folder
from moeprobe.inputs.data.readers.images import ImageFiles, list_folders, list_images

# Shares of images where no folders say which split they are of.
_VAL_FRACTION, _TEST_FRACTION = 0.1, 0.1
_FRACTION = "?val_fraction="


class Folder(ImageFiles):
    """A folder of image files: PATH/<split>/<class>/..., PATH/<class>/... or unlabeled images.

    Classes are sorted by name over all splits, so a class has one number even where a split lacks it; a class folder
    may have folders of its own. Image ids are paths relative to PATH, in sorted order.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        path, val_fraction = _fraction(location)
        self._root = require_folder(path, name="folder", layout="<split>/<class>/..., <class>/... or images")
        folders = list_folders(self._root)
        present = by_split({name: name for name in folders})
        layout = _Layout.of(present, labeled=bool(folders))
        if val_fraction is not None and not layout.val_from_hash:
            raise UserError(
                f"{str(self._root)!r} needs no share for val: leave data.val_fraction ({_FRACTION}) out."
            )
        check_split(split, layout.splits)
        folder = layout.folder(split)
        files = list_images(self._root / folder)
        if not files:
            raise UserError(f"There are no images in {str(self._root / folder)!r}.")
        self.class_names = None
        classes = _classes(files, folder=self._root / folder)
        val_fraction = _VAL_FRACTION if val_fraction is None else val_fraction
        split_files = [file for file in files if layout.holds(split, file, val_fraction)]
        if not split_files:
            raise UserError(
                f"None of the {len(files)} images in {str(self._root / folder)!r} falls to the split {split!r}, which "
                "a hash of their paths chooses; put the images of each split into a folder: train/, val/, test/."
            )
        self._labels = [None] * len(split_files)
        if classes:
            for split_folder in present.values() or [""]:
                classes.update(list_folders(self._root / split_folder))
            self.class_names = tuple(sorted(classes))
            number = {name: label for label, name in enumerate(self.class_names)}
            self._labels = [number[file.split("/", 1)[0]] for file in split_files]
        self.split_note = layout.note(val_fraction)
        self.image_ids = [f"{folder}/{file}" if folder else file for file in split_files]


@dataclass(frozen=True)
class _Layout:
    """The splits, and the folders of their images.

    Attributes:
        folders: split -> its folder; empty where none is named after a split.
        splits: all of them.
    """

    folders: dict[str, str]
    splits: tuple[str, ...]

    @classmethod
    def of(cls, folders: dict[str, str], *, labeled: bool) -> "_Layout":
        if not folders:
            return cls(folders, (*SPLITS, "all") if labeled else ("test",))
        derived = {"val"} if "train" in folders else set()
        return cls(folders, tuple(split for split in SPLITS if split in derived | set(folders)))

    @property
    def val_from_hash(self) -> bool:
        """Whether val is a share of other images."""
        return "val" in self.splits and "val" not in self.folders

    def folder(self, split: str) -> str:
        """Return the folder that holds the images of a split, among others."""
        return self.folders.get(split, self.folders.get("train", ""))

    def holds(self, split: str, file: str, val_fraction: float) -> bool:
        """Whether an image of the split's folder is of the split."""
        if not self.val_from_hash or split == "all" or (self.folders and split == "test"):
            return True
        fraction = (
            int.from_bytes(hashlib.blake2b(file.encode("utf-8", "surrogateescape"), digest_size=8).digest())
            / 2**64
        )
        # From both ends: another share for val leaves the test images what they are.
        if fraction >= 1 - val_fraction:
            return split == "val"
        if not self.folders and fraction < _TEST_FRACTION:
            return split == "test"
        return split == "train"

    def note(self, val_fraction: float) -> str:
        """Return how the splits were made; empty where folders say it."""
        if not self.val_from_hash:
            return ""
        if self.folders:
            return f"val is {val_fraction:g} of train/, by a hash of each path"
        return f"test is {_TEST_FRACTION:g} and val {val_fraction:g} of the images, by a hash of each path"


def _fraction(location: str | None) -> tuple[str | None, float | None]:
    """Return the folder and the share for val that a location names, None where it names none.

    Raises:
        UserError: the share is not between 0 and the share that test leaves.
    """
    path, mark, text = (location or "").rpartition(_FRACTION)
    if not mark:
        return location, None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1 - _TEST_FRACTION:
        raise UserError(
            f"In {location!r}, val_fraction is a number above 0 and below {1 - _TEST_FRACTION:g}."
        )
    return path, value


def _classes(files: list[str], *, folder: Path) -> set[str]:
    """Return the class folders of ``files``; none if they are in no class folder.

    Raises:
        UserError: some are in class folders and some next to them, so that these have no class.
    """
    classes = {file.split("/", 1)[0] for file in files if "/" in file}
    loose = [file for file in files if "/" not in file]
    if classes and loose:
        raise UserError(
            f"In {str(folder)!r}, {loose[0]!r} is next to class folders such as {min(classes)!r}; "
            "move it into the folder of its class."
        )
    return classes
