"""Photographs of animals, fruit, flowers, vegetables and instruments, each cut out by hand: real masks.

They are stamps of the drawing program Tux Paint (GPL-2), which Debian ships as ``tuxpaint-stamps-default``. Seven of
its folders hold photographs and drawings; ``photographs.txt`` lists the photographs. A picture counts as a drawing if
it has fewer than 1,000 colors, and fewer than half as many colors as pixels. Two more drawings were left out by hand,
and a lobster among the fish.

A photograph has no ground of its own. It lies on a texture as ``shapes`` has, drawn from its name, in a square that is
a seventh larger than it.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS, Example, ImageDataset, check_split, require_folder
from moeprobe.inputs.data.readers.images import open_rgba
from moeprobe.inputs.surfaces import draw_ground
from moeprobe.runtime.files import is_file, is_folder
from moeprobe.runtime.seeds import generator

_LIST = Path(__file__).with_suffix(".txt")
PACKAGED = Path("/usr/share/tuxpaint/stamps")
# The folder of each class.
_CLASSES = {
    "birds": "animals/birds", "fish": "animals/fish", "flowers": "plants/flowers", "fruit": "food/fruit",
    "instruments": "hobbies/music", "mammals": "animals/mammals", "vegetables": "food/vegetables",
}  # fmt: skip
# Shares of each class in test and in val. All pictures of a thing are in one split.
_TEST, _VAL = 0.3, 0.1
_MARGIN = 8 / 7
# Changing this, or the order of the draws, makes another data set.
_SEED = 20261128


class Photographs(ImageDataset):
    """173 photographs of seven kinds of things with masks: ``apt install tuxpaint-stamps-default``, or its folder.

    ``photographs:PATH`` is the folder ``stamps/`` of that package elsewhere. All pictures of a thing (apples, gnus) are
    in one split: 30 % of a class are ``test``, 10 % ``val``, by a hash of the things' names; ``all`` is all of them.
    """

    is_encoded = True
    split_note = "test is 30 % and val 10 % of each class, by a hash of the things' names"

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, (*SPLITS, "all"))
        self._root = _find(location)
        self.image_ids = [name for name in photograph_names() if split in ("all", _splits()[name])]
        self.class_names = tuple(_CLASSES)
        self._labels = [_label_of(name) for name in self.image_ids]

    def example(self, index: int) -> Example:
        """Return photograph ``index`` on its ground, with its mask where it covers half a pixel."""
        name = self.image_ids[index]
        stamp = open_rgba(self._root / name, name=repr(str(self._root / name)))
        random = generator(_SEED, "photographs", name)
        side = round(_MARGIN * max(stamp.size))
        corner = [int(random.integers(side - length + 1)) for length in stamp.size]
        canvas = Image.new("RGBA", (side, side))
        canvas.paste(stamp, (corner[0], corner[1]))
        pixels = np.asarray(canvas, dtype=np.float32) / 255
        coverage = pixels[..., 3:]
        ground = draw_ground(random, side)
        mixed = ground + (pixels[..., :3] - ground) * coverage
        image = Image.fromarray((mixed * 255).round().clip(0, 255).astype(np.uint8))
        return Example(image, name, label=self._labels[index], mask=coverage[..., 0] >= 0.5)


@cache
def photograph_names() -> tuple[str, ...]:
    """Return the paths of the photographs in the folder of stamps."""
    return tuple(_LIST.read_text(encoding="utf-8").split())


def _label_of(name: str) -> int:
    return next(label for label, folder in enumerate(_CLASSES.values()) if name.startswith(f"{folder}/"))


@cache
def _splits() -> dict[str, str]:
    """Return the split of each photograph, of every class nearly the same shares."""
    splits: dict[str, str] = {}
    for label in range(len(_CLASSES)):
        by_thing: dict[str, list[str]] = {}
        for name in photograph_names():
            if _label_of(name) == label:
                by_thing.setdefault(_thing_of(name), []).append(name)
        num_placed, size = 0, sum(map(len, by_thing.values()))
        for thing in sorted(by_thing, key=_hash):
            share = num_placed / size
            split = "test" if share < _TEST else "val" if share < _TEST + _VAL else "train"
            splits |= dict.fromkeys(by_thing[thing], split)
            num_placed += len(by_thing[thing])
    return splits


def _thing_of(name: str) -> str:
    """Return the first word of a file name: apple for apple_fuji.png."""
    return re.split(r"[^a-z]", Path(name).stem.lower())[0]


def _hash(thing: str) -> bytes:
    return hashlib.blake2b(thing.encode(), digest_size=8).digest()


def _find(location: str | None) -> Path:
    """Return the folder of the stamps.

    Raises:
        UserError: it is not there, or lacks photographs.
    """
    if location:
        root = require_folder(
            location, name="photographs", layout="the folders animals/, food/, hobbies/ and plants/"
        )
    elif is_folder(PACKAGED):
        root = PACKAGED
    else:
        raise UserError(
            "The photographs are not installed; on Debian: apt install tuxpaint-stamps-default; elsewhere write "
            "photographs:PATH of that package's folder stamps/."
        )
    lacking = [name for name in photograph_names() if not is_file(root / name)]
    if lacking:
        raise UserError(
            f"{str(root)!r} lacks {len(lacking)} of the {len(photograph_names())} photographs, e.g. {lacking[0]}; "
            "install version 2022.06.04 of tuxpaint-stamps-default."
        )
    return root
