"""A data set whose foreground masks are in a folder of the user's own."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.files import is_file, is_folder, sha256


class Masked(ImageDataset):
    """A data set with the masks of ``folder``: FOLDER/<image id without its suffix>.png, foreground not black."""

    def __init__(self, dataset: ImageDataset, folder: Path) -> None:
        if not is_folder(folder):
            raise UserError(
                f"There is no folder {str(folder)!r} for --masks; it should hold a PNG file per image."
            )
        self._dataset = dataset
        self._folder = folder
        self.image_ids = dataset.image_ids
        self.class_names = dataset.class_names
        self.flippable = dataset.flippable  # type: ignore[misc]

    def example(self, index: int) -> Example:
        """Return image ``index`` with its mask.

        Raises:
            UserError: the image or its mask cannot be read, or they differ in size.
        """
        example = self._dataset.example(index)
        path = self._path(index)
        if not is_file(path):
            raise UserError(f"There is no mask {str(path)!r} for the image {example.image_id!r}.")
        mask = np.asarray(open_rgb(path, name=repr(str(path)))).any(-1)
        if mask.shape != (example.image.height, example.image.width):
            raise UserError(
                f"The mask {str(path)!r} has {mask.shape[1]} x {mask.shape[0]} pixels, "
                f"its image {example.image.width} x {example.image.height}."
            )
        return Example(example.image, example.image_id, label=example.label, mask=mask)

    def labels(self) -> NDArray[np.int64]:
        """Return the labels of the data set."""
        return self._dataset.labels()

    def mask_hash(self, indices: Sequence[int]) -> str:
        """Return a hash of the files' contents; one that is missing counts as empty."""
        digest = hashlib.sha256()
        for path in map(self._path, indices):
            digest.update(bytes.fromhex(sha256(path)) if is_file(path) else hashlib.sha256(b"").digest())
        return digest.hexdigest()

    def _path(self, index: int) -> Path:
        return (self._folder / self.image_ids[index]).with_suffix(".png")
