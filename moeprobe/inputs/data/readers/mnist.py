"""What the data sets in MNIST's format share: four idx files, gray images of 28 x 28, and the splits.

The files are those that the publishers name, plain or packed with gzip. ``NAME:PATH`` looks in PATH, ``NAME`` alone
in the places where a package manager, torchvision or ``--download`` puts them.

Splits: test is the published test half; val the last twelfth of the training images (5,000 of 60,000), in the order
of the files, which the publishers shuffled; train the rest.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError, first_line, option
from moeprobe.inputs.data.base import Example, ImageDataset, check_split, require_folder
from moeprobe.runtime.files import is_file, is_folder
from moeprobe.runtime.hub import may_download
from moeprobe.runtime.torchvision_compat import import_with_operators

RESOLUTION = 28
_VAL_SHARE = 12
# Where --download puts the files, and where torchvision's users keep them.
DOWNLOADED = Path("~/.cache/moeprobe/data")
ROOTS = (DOWNLOADED, Path("data"), Path("~/data"), Path("~/datasets"))


class MnistFiles(ImageDataset):
    """One split of a data set in MNIST's format, held in memory as the published bytes.

    Attributes:
        name: what users call it.
        published: what torchvision calls it: its class, and its folder.
        names: of the classes, in the order of their labels.
        packaged: folders where a package manager puts it.
        how: how to get it without a download by moeprobe, as a half sentence.
    """

    name: ClassVar[str]
    published: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    packaged: ClassVar[tuple[Path, ...]] = ()
    how: ClassVar[str] = ""
    split_note = "val is the last twelfth of the published training images"

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        half = "test" if split == "test" else "train"
        folder, files = self._locate(location, half)
        pixels, labels = _read_half(*files)
        self.class_names = self.names
        if labels.size and labels.max() >= len(self.class_names):
            raise UserError(
                f"{str(files[1])!r} has labels outside 0..{len(self.class_names) - 1} of {self.name!r}."
            )
        cut = len(labels) - len(labels) // _VAL_SHARE
        rows = {"train": slice(cut), "val": slice(cut, None), "test": slice(None)}[split]
        if not labels[rows].size:
            raise UserError(f"The split {split!r} of {str(folder)!r} holds no images.")
        self._pixels, self._labels = pixels[rows].copy(), labels[rows].copy()
        self.image_ids = [f"{half}/{row:05d}" for row in range(len(labels))[rows]]

    def example(self, index: int) -> Example:
        """Return image ``index`` of the split, 28x28, its gray repeated over three channels."""
        image = Image.fromarray(self._upright(self._pixels[index])).convert("RGB")
        return Example(image, self.image_ids[index], label=int(self._labels[index]))

    @staticmethod
    def _upright(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return an image as one looks at it, of one as it is stored."""
        return pixels

    def _stems(self, half: str) -> tuple[str, str]:
        """Return what the files of a half (``train`` or ``test``) are called, without ``.gz``: images, labels."""
        stem = "t10k" if half == "test" else "train"
        return f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"

    def _locate(self, location: str | None, half: str) -> tuple[Path, tuple[Path, Path]]:
        """Return the folder of the files, and the files of one half: images, labels.

        Raises:
            UserError: they are not there; the sentence says how to get them.
        """
        if location:
            root = require_folder(location, name=self.name, layout=" and ".join(self._stems(half)))
            return self._search(_inside(root, self.published), half, location=repr(location))
        images = self._stems(half)[0]
        if may_download() and not any(find(folder, images) for folder in self._usual_places()):
            self._download()
        return self._search(self._usual_places(), half, location="the usual places")

    def _usual_places(self) -> list[Path]:
        """Return the folders where the files are looked for without a location."""
        roots = [_inside(root.expanduser(), self.published) for root in ROOTS]
        return [*self.packaged, *chain.from_iterable(roots)]

    def _search(self, folders: Sequence[Path], half: str, *, location: str) -> tuple[Path, tuple[Path, Path]]:
        images, labels = self._stems(half)
        for folder in folders:
            pair = find(folder, images), find(folder, labels)
            if pair[0] and pair[1]:
                return folder, (pair[0], pair[1])
            if pair[0] or pair[1]:
                raise UserError(f"{str(folder)!r} holds only one of {images} and {labels}; get both.")
        ways = " or ".join(
            way
            for way in (
                self.how,
                f"fetch it with {option('api.downloads()', flag='--download')}",
                f"write {self.name}:PATH of a folder that has it",
            )
            if way
        )
        raise UserError(f"{images} of {self.name!r} is not in {location}: {ways}.")

    def _download(self) -> None:
        """Fetch the published files through torchvision, which checks them.

        Raises:
            UserError: that fails; the sentence has torchvision's reason.
        """
        datasets = import_with_operators("torchvision.datasets")
        root = DOWNLOADED.expanduser()
        try:
            getattr(datasets, self.published)(str(root), download=True, **self._download_keywords())
        except Exception as error:  # of the network, of archives, of the disk: each has errors of its own
            raise UserError(f"{self.name!r} cannot be downloaded: {first_line(error)}.") from error

    def _download_keywords(self) -> dict[str, str]:
        """Return what torchvision's class takes beside the folder."""
        return {}


def _inside(root: Path, published: str) -> list[Path]:
    """Return where files may be below a folder: there, or where torchvision puts them."""
    return [folder for folder in (root, root / "raw", root / published / "raw") if is_folder(folder)]


def _read_half(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return pixels (images, 28, 28) and labels (images,).

    Raises:
        UserError: a file is damaged, images have another size, or the files do not belong together.
    """
    pixels, numbers = read(images, num_dimensions=3), read(labels, num_dimensions=1)
    if pixels.shape[1:] != (RESOLUTION, RESOLUTION):
        size = " x ".join(str(side) for side in pixels.shape[1:])
        raise UserError(f"{str(images)!r} holds images of {size} pixels; they should be 28 x 28.")
    if len(pixels) != len(numbers):
        raise UserError(
            f"{str(images)!r} has {len(pixels)} images but {str(labels)!r} {len(numbers)} labels."
        )
    return pixels, numbers


# The idx format of the MNIST family: a big-endian header, then bytes; plain or packed with gzip.
#
# A file begins with two zero bytes, the type of its numbers (8: bytes) and the number of dimensions; then the length of
# each dimension, 4 bytes each (Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits").

_BYTES = 8
_MOST = 2**31  # bytes of an array: EMNIST's largest has 547 million


def find(folder: Path, name: str) -> Path | None:
    """Return the file called ``name`` in a folder, or ``name.gz``; None where there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if is_file(path)), None)


def read(path: Path, *, num_dimensions: int) -> NDArray[np.uint8]:
    """Return the array of bytes that an idx file holds.

    Raises:
        UserError: the file cannot be read, is not in this format, has another number of dimensions, or fewer or more
            bytes than its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4)
            if header != bytes([0, 0, _BYTES, num_dimensions]):
                raise UserError(f"{str(path)!r} is no idx file of bytes with {num_dimensions} dimensions.")
            lengths = file.read(4 * num_dimensions)
            shape = struct.unpack(f">{num_dimensions}I", lengths)
            size = math.prod(shape)
            if size > _MOST:
                raise UserError(f"{str(path)!r} says that it holds {size} bytes, more than any of its kind.")
            # One more than there should be: what follows is noticed, and never unpacked as a whole.
            content = file.read(size + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise UserError(f"{str(path)!r} cannot be read: it is damaged or cut off.") from error
    if len(content) != size:
        kind = "more" if len(content) > size else f"{len(content)}"
        raise UserError(f"{str(path)!r} should hold {size} bytes and holds {kind}; get it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
