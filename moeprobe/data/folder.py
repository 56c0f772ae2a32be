"""A folder of images, with or without classes, with or without splits.

Three layouts, found out by looking::

    PATH/<split>/<class>/...    splits, where one of the folders is called train, val (validation, valid) or test
    PATH/<class>/...            classes, no splits
    PATH/*.jpg                  images without labels (likewise PATH/<split>/*.jpg)

Without split folders all images form the split ``test``, and there is no other: the same images must never be
both trained and judged on.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.data._images import list_folders, list_images, open_rgb
from moeprobe.data.base import Example, ImageDataset, as_labels, check_split, require_folder
from moeprobe.errors import UserError

# What the folder of a split may be called; the first that is there is taken.
_FOLDERS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}


class Folder(ImageDataset):
    """A folder of image files: PATH/<split>/<class>/..., PATH/<class>/... or unlabelled images.

    Classes are sorted by name over all splits, so a class has one number even where a split lacks it; a class folder
    may have folders of its own. Image ids are paths relative to PATH, in sorted order.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        self._root = require_folder(
            location, name="folder", layout="<split>/<class>/..., <class>/... or images"
        )
        present = _split_folders(self._root)
        check_split(split, tuple(present))
        files = list_images(self._root / present[split])
        if not files:
            raise UserError(f"There are no images in {str(self._root / present[split])!r}.")
        self.class_names = None
        self._labels: list[int] | None = None
        classes = _classes(files, folder=self._root / present[split])
        if classes:
            for other in present.values():
                classes.update(list_folders(self._root / other))
            self.class_names = tuple(sorted(classes))
            number = {name: label for label, name in enumerate(self.class_names)}
            self._labels = [number[file.split("/", 1)[0]] for file in files]
        prefix = f"{present[split]}/" if present[split] else ""
        self.image_ids = [prefix + file for file in files]

    def example(self, index: int) -> Example:
        """Return image ``index`` of the sorted paths, at its own size."""
        path = self._root / self.image_ids[index]
        label = None if self._labels is None else self._labels[index]
        return Example(open_rgb(path, name=repr(str(path))), self.image_ids[index], label=label)

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every image."""
        return as_labels(self._labels or [None] * len(self))


def _split_folders(root: Path) -> dict[str, str]:
    """Return split -> its folder in ``root``; ``{"test": ""}`` where none is named after a split."""
    there = set(list_folders(root))
    found = {
        split: next(name for name in names if name in there)
        for split, names in _FOLDERS.items()
        if there.intersection(names)
    }
    return found or {"test": ""}


def _classes(files: list[str], *, folder: Path) -> set[str]:
    """Return the class folders that ``files`` lie in; none where they lie loose.

    Raises:
        UserError: some lie in class folders and some beside them, so that these have no class.
    """
    classes = {file.split("/", 1)[0] for file in files if "/" in file}
    loose = [file for file in files if "/" not in file]
    if classes and loose:
        raise UserError(
            f"In {str(folder)!r}, {loose[0]!r} lies beside class folders such as {min(classes)!r}; "
            "move it into the folder of its class."
        )
    return classes
