"""Image files: which ones there are in a folder, and any of them as RGB with 8 bits.

What becomes of an image that is stored otherwise:

* transparency is laid on white: the color hidden under a transparent pixel is arbitrary, white is what a page shows;
* 16-bit gray is scaled, 65535 -> 255 (Pillow's own conversion clips it to 255);
* a palette is looked up, CMYK converted, gray repeated over three channels, an animation gives its first frame;
* the rotation in the EXIF header is applied, so the pixels are oriented as a viewer shows them.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import is_file, is_folder, open_regular, resolve, sha256

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# Files that are no images (lists, descriptions) in a folder of images, whatever the number of those.
MOST_OTHER_FILES = 100_000
# Named, because Pillow would try every format it knows on a file, and hand an EPS to an outside program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")


def open_rgb(source: Path | BinaryIO, *, name: str) -> Image.Image:
    """Return the image in ``source`` as RGB with 8 bits (see above), fully decoded.

    Args:
        source: a path, or an open binary file.
        name: what the sentence of an error calls the image.

    Raises:
        UserError: the file is missing, no regular file, empty, truncated, no image, or too large to be one.
    """
    return _open(source, name, _to_rgb)


def open_rgba(source: Path | BinaryIO, *, name: str) -> Image.Image:
    """Return the image in ``source`` with its transparency, fully decoded; else as ``open_rgb``."""
    return _open(source, name, lambda image: image.convert("RGBA"))


def _open(source: Path | BinaryIO, name: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata that do not touch the pixels; its warning of a bomb is meant.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with (
                open_regular(source) if isinstance(source, Path) else nullcontext(source) as file,
                Image.open(file, formats=_FORMATS) as image,
            ):
                image.load()
                return convert(_upright(image))
    except UserError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UserError(
            f"The image {name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels; shrink it or remove it."
        ) from error
    except UnidentifiedImageError as error:
        raise UserError(f"The image {name} cannot be read: it is empty or not an image.") from error
    except Exception as error:  # a damaged file makes Pillow's decoders raise almost anything
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"The image {name} cannot be read: {reason}.") from error


def _upright(image: Image.Image) -> Image.Image:
    """Return ``image`` as its EXIF header says to show it; as stored where the header cannot be read."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels are whole: a broken header is no reason to refuse them
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known")
    # All integer modes of more than 8 bits begin with I.
    if image.mode.startswith("I"):
        return _gray_16(np.asarray(image)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _gray_16(pixels: np.ndarray) -> Image.Image:
    """Return gray pixels in 0..65535 scaled to 8 bits, rounded."""
    values = pixels.astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels are outside 0..65535")
    # 65535 = 255 · 257, so this rounds to the nearest.
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def list_images(folder: Path) -> list[str]:
    """Return the images under ``folder`` as sorted POSIX paths relative to it.

    Hidden files and folders are left out. Links are followed, unless they lead back into a folder on the way.

    Raises:
        UserError: a folder on the way cannot be read, a link leads to a folder that holds this one, a name is not
            UTF-8, or nearly all files are no images.
    """
    try:
        return sorted(walk_images(folder))
    except OSError as error:
        raise _unreadable(folder, error) from error


def list_folders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in ``folder``, without hidden ones.

    Raises:
        UserError: ``folder`` cannot be read, or a name in it is not UTF-8.
    """
    try:
        return sorted(
            _unicode_name(path.name, folder)
            for path in folder.iterdir()
            if is_folder(path) and not path.name.startswith(".")
        )
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unicode_name(name: str, folder: Path) -> str:
    """Return the name of a file or folder, which tables will hold."""
    if not is_unicode(name):
        raise UserError(f"The name {name!r} in {str(folder)!r} is not UTF-8; rename it.")
    return name


def _unreadable(folder: Path, error: OSError) -> UserError:
    return UserError(f"The folder {str(error.filename or folder)!r} cannot be read: {error.strerror}.")


def walk_images(root: Path) -> Iterator[str]:
    """Yield the names of the images below a folder, each folder read once.

    Raises:
        UserError: most of the first files are no images.
    """
    # Identities and not paths: links give one folder many paths.
    outside = {_identity(folder) for folder in resolve(root).parents}
    # Folders to be read: path, prefix of the names, identities of its parent folders.
    pending: list[tuple[Path, str, frozenset[tuple[int, int]]]] = [(root, "", frozenset())]
    images = extra = 0
    while pending:
        folder, prefix, above = pending.pop()
        identity = _identity(folder)
        # A link that leads back into a folder on the way would never end.
        if identity in above:
            continue
        if identity in outside:
            raise UserError(
                f"The link {str(folder)!r} leads to {str(resolve(folder))!r}, which holds {str(root)!r} itself; "
                "remove the link."
            )
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in visible:
            if os.path.isdir(entry.path):  # noqa: PTH112 - a link to itself: False, where entry.is_dir() raises
                pending.append((Path(entry.path), f"{prefix}{entry.name}/", above | {identity}))
            elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS:  # noqa: PTH122 - a million times
                images += 1
                yield _unicode_name(f"{prefix}{entry.name}", root)
            else:
                extra += 1
        # Relative to the images: a large data set may have many lists beside them.
        if extra > MOST_OTHER_FILES + 10 * images:
            raise UserError(
                f"Only {images:,} of the first {images + extra:,} files in {str(root)!r} are images, so it is no "
                "folder of images; name the one that holds them, and look for links that lead out of it."
            )


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


class ImageFiles(ImageDataset):
    """Images in files of their own, named by their paths below a folder, each with its label or None."""

    is_encoded = True

    _root: Path
    _labels: Sequence[int | None]

    def example(self, index: int) -> Example:
        """Return image ``index``, at its own size."""
        path = self._root / self.image_ids[index]
        return Example(open_rgb(path, name=repr(str(path))), self.image_ids[index], label=self._labels[index])


class Masked(ImageDataset):
    """A data set with the masks of ``folder``: FOLDER/<image id without its suffix>.png, foreground not black."""

    def __init__(self, dataset: ImageDataset, folder: Path) -> None:
        if not is_folder(folder):
            raise UserError(
                f"There is no folder {str(folder)!r} for {option('masks')}; it should hold a PNG file per image."
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
