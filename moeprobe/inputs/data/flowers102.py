"""Oxford 102 category flowers (M.-E. Nilsback and A. Zisserman, ICVGIP 2008), as published.

::

    PATH/jpg/image_00001.jpg ...
    PATH/imagelabels.mat    labels (1, images): 1..102
    PATH/setid.mat          trnid, valid, tstid (1, n): numbers of the images of each split
"""

import math
from pathlib import Path

import numpy as np

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import check_split, require_folder
from moeprobe.inputs.data.readers.images import ImageFiles
from moeprobe.runtime.files import is_file

_NUM_CLASSES = 102
_MOST = 1_000_000
_LISTS = {"train": "trnid", "val": "valid", "test": "tstid"}


class Flowers102(ImageFiles):
    """Oxford's 102 flower categories with the official train, val and test lists.

    The published files number the classes and do not name them, so the names are "1" to "102".
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        layout = "jpg/image_00001.jpg ..., imagelabels.mat and setid.mat"
        self._root = require_folder(location, name="flowers102", layout=layout)
        labels = _read_list(self._root / "imagelabels.mat", "labels")
        numbers = _read_list(self._root / "setid.mat", _LISTS[split])
        self._check(labels, numbers)
        self._labels = (labels[numbers - 1] - 1).tolist()
        self.image_ids = [f"jpg/image_{number:05d}.jpg" for number in numbers]
        self.class_names = tuple(str(label) for label in range(1, _NUM_CLASSES + 1))

    def _check(self, labels: np.ndarray, numbers: np.ndarray) -> None:
        """Raise ``UserError`` unless the lists and the folder have the same images."""
        where = str(self._root)
        if labels.size == 0 or labels.min() < 1 or labels.max() > _NUM_CLASSES:
            raise UserError(f"The labels of imagelabels.mat in {where!r} must be in 1..{_NUM_CLASSES}.")
        if numbers.size == 0 or numbers.min() < 1 or numbers.max() > len(labels):
            raise UserError(
                f"The lists of setid.mat in {where!r} must be in 1..{len(labels)}, and hold images."
            )
        values, counts = np.unique(numbers, return_counts=True)
        if (counts > 1).any():
            twice = values[counts > 1][0]
            raise UserError(f"A list of setid.mat in {where!r} names image {twice} twice; download it again.")
        num_files = sum(1 for _ in (self._root / "jpg").glob("image_*.jpg"))
        if num_files != len(labels):
            raise UserError(
                f"{where!r} has {num_files} images in jpg but {len(labels)} labels in imagelabels.mat."
            )


def _read_list(path: Path, key: str) -> np.ndarray:
    """Return the integers called ``key`` in a MATLAB file, flattened."""
    from scipy.io import loadmat, whosmat

    if not is_file(path):
        raise UserError(f"There is no file {str(path)!r}; 'flowers102' needs it.")
    try:
        # Looked at before it is read: an array that unpacks to gigabytes is no list of images.
        shape = next(shape for name, shape, _ in whosmat(path) if name == key)
        values = loadmat(path, variable_names=[key])[key] if math.prod(shape) <= _MOST else None
    except Exception as error:  # a damaged file makes SciPy's reader raise almost anything
        raise UserError(f"The file {str(path)!r} does not hold the list {key!r}: it is damaged.") from error
    if values is None:
        raise UserError(
            f"The list {key!r} in {str(path)!r} has the shape {shape}, too long for Oxford's flowers."
        )
    if not np.issubdtype(values.dtype, np.number) or not np.array_equal(values, np.round(values.real)):
        raise UserError(f"The list {key!r} in {str(path)!r} should hold whole numbers; it is damaged.")
    return values.real.ravel().astype(np.int64)
