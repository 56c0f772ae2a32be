"""ImageNet (ILSVRC 2012) in the layout that torchvision and timm read.

::

    PATH/train/<wnid>/*.JPEG
    PATH/val/<wnid>/*.JPEG
    PATH/LOC_synset_mapping.txt     optional: "n01440764 tench, Tinca tinca", one class a line

V-MoE's recipe trains on 99 % of the training images, tunes on the other 1 % and reports on the official validation
images; so do the splits here. Which 1 % is decided by a hash of each file's name: in the manner of the recipe, not
TFDS's own order; and an image keeps its split even where only a part of ImageNet is at hand.
"""

import hashlib
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import check_split, require_folder
from moeprobe.inputs.data.readers.images import ImageFiles, list_folders, list_images
from moeprobe.runtime.files import is_file, is_folder, read_bytes

_VAL_PERCENT = 1
_MAPPING = "LOC_synset_mapping.txt"
# Bytes of that file; ImageNet's has thirty thousand, of all its synsets a million.
_LARGEST = 2**24


class Imagenet(ImageFiles):
    """ImageNet in folders: train and val are 99 % and 1 % of PATH/train, test is PATH/val.

    Labels number the sorted wnids of ``LOC_synset_mapping.txt`` where it exists, so that a part of ImageNet
    keeps the official numbers; else of PATH/train; else of PATH/val.
    """

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        layout = "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG"
        self._root = require_folder(location, name="imagenet", layout=layout)
        part = "val" if split == "test" else "train"
        folder = self._root / part
        if not is_folder(folder):
            raise UserError(
                f"There is no folder {str(folder)!r}; 'imagenet' needs it for the split {split!r}."
            )
        train = self._root / "train"
        names = class_names(self._root, train if is_folder(train) else self._root / "val")
        self.class_names = tuple(names.values())
        number = {wnid: label for label, wnid in enumerate(names)}
        self.image_ids = []
        self._labels = []
        for wnid in list_folders(folder):
            if wnid not in number:
                raise UserError(f"The folder {str(folder / wnid)!r} is none of the {len(number)} classes.")
            files = [f for f in list_images(folder / wnid) if part == "val" or _is_val(f) == (split == "val")]
            self.image_ids += [f"{part}/{wnid}/{file}" for file in files]
            self._labels += [number[wnid]] * len(files)
        if not self.image_ids:
            raise UserError(f"The split {split!r} of 'imagenet' has no images in {str(folder)!r}.")


def _is_val(file: str) -> bool:
    """Whether a training image is one of the 1 % held out for the split ``val``."""
    digest = hashlib.blake2b(file.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < _VAL_PERCENT


def class_names(root: Path, folder: Path) -> dict[str, str]:
    """Return wnid -> unique class name, sorted by wnid: of the mapping in ``root``, else the folders in ``folder``."""
    mapping = root / _MAPPING
    if not is_file(mapping):
        return {wnid: wnid for wnid in list_folders(folder)}
    try:
        text = read_bytes(mapping, limit=_LARGEST).decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{str(mapping)!r} is not written in UTF-8.") from None
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    if any(len(line) != 2 for line in lines):
        raise UserError(f"Each line of {str(mapping)!r} must hold a wnid and its description.")
    names = dict(sorted((wnid, description.strip()) for wnid, description in lines))
    # Two synsets are called "crane"; a table that groups by class name must not merge them.
    descriptions = list(names.values())
    return {
        wnid: name if descriptions.count(name) == 1 else f"{name} ({wnid})" for wnid, name in names.items()
    }
