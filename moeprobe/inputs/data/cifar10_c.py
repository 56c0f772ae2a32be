"""CIFAR-10-C (D. Hendrycks and T. Dietterich, ICLR 2019), as published.

::

    PATH/<corruption>.npy   (5 n, 32, 32, 3) uint8: n images at severity 1, the same at severity 2, ...
    PATH/labels.npy         (5 n,) whole numbers from 0 to 9

n is 10,000: the test batch of CIFAR-10, in its order.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import SEVERITIES, parse_location
from moeprobe.inputs.data.base import Example, ImageDataset, check_split, require_folder
from moeprobe.runtime.files import NPY_DAMAGE, is_file

# Those of CIFAR-10, in the order of its labels; the archive of CIFAR-10-C has no names.
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cifar10C(ImageDataset):
    """CIFAR-10-C: one corruption at one severity, ``cifar10_c:PATH?corruption=snow&severity=3``.

    Images have the names that ``cifar10`` gives the clean ones.
    """

    splits = ("test",)
    class_names = _CLASSES

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        path, kind, severity = parse_location(location, name="cifar10_c")
        folder = require_folder(path, name="cifar10_c", layout="<corruption>.npy and labels.npy")
        pixels, labels = _read(folder / f"{kind}.npy"), _read(folder / "labels.npy")
        steps = len(SEVERITIES)
        if (
            pixels.dtype != np.uint8
            or pixels.shape[1:] != (32, 32, 3)
            or len(pixels) % steps
            or not len(pixels)
        ):
            raise UserError(
                f"{kind}.npy in {path!r} holds {pixels.shape} {pixels.dtype}; expected 5 n images (32, 32, 3) in uint8."
            )
        if labels.shape != (len(pixels),) or labels.dtype.kind not in "iu":
            raise UserError(f"labels.npy in {path!r} must hold {len(pixels)} whole numbers, one an image.")
        each = len(pixels) // steps
        rows = slice((severity - 1) * each, severity * each)
        # Copied: a file in memory is sent to a worker as a whole.
        self._pixels, self._labels = np.array(pixels[rows]), np.array(labels[rows], dtype=np.int64)
        if self._labels.min() < 0 or self._labels.max() >= len(_CLASSES):
            raise UserError(f"labels.npy in {path!r} has labels outside 0..{len(_CLASSES) - 1}.")
        self.image_ids = [f"test/{row:05d}" for row in range(each)]

    def example(self, index: int) -> Example:
        """Return image ``index``, 32 x 32."""
        return Example(
            Image.fromarray(self._pixels[index]), self.image_ids[index], label=int(self._labels[index])
        )


def _read(path: Path) -> NDArray[np.generic]:
    """Return what an .npy file holds, without reading it yet; pickles in it are refused.

    Raises:
        UserError: it is not there, or no such file.
    """
    if not is_file(path):
        raise UserError(f"There is no file {str(path)!r}; 'cifar10_c' needs it.")
    try:
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except NPY_DAMAGE as error:
        raise UserError(f"{str(path)!r} is damaged, or no .npy file of numbers.") from error
