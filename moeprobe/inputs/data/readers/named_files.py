"""A handful of image files named one by one."""

from collections.abc import Sequence
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.files import is_file


class Files(ImageDataset):
    """Image files of the user's own, without labels."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._paths = [Path(path) for path in paths]
        for path in self._paths:
            if not is_file(path):
                raise UserError(f"There is no image file {path}.")
        self.image_ids = [str(path) for path in self._paths]
        self.class_names = None

    def example(self, index: int) -> Example:
        """Return image ``index``."""
        path = self._paths[index]
        return Example(open_rgb(path, name=str(path)), self.image_ids[index])
