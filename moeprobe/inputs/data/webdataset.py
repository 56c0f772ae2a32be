"""WebDataset: images in tar shards, found at random by the offset of their member; nothing is extracted.

``webdataset:LOCATION``, where LOCATION is

* a folder with ``<split>-*.tar`` or ``<split>/*.tar``,
* a glob pattern, ``/data/flowers-*.tar``,
* a brace pattern, ``/data/train-{000000..000127}.tar`` or ``/data/{train,val}-0.tar``: every shard must be there.

A shard belongs to the split that is a word of its name (``imagenet-train-0001.tar``), or the name of its folder.
Where no shard of a pattern names a split, all form the split ``test``, and there is no other.

A record is the members that share a name up to its first dot: one image, and its label in ``.cls`` (an integer as
text) or under ``"label"`` in ``.json``. Nothing else in a shard is looked at, pickles least of all.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLIT_NAMES, Example, ImageDataset, check_split
from moeprobe.inputs.data.readers.images import open_rgb
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import JSON_LIMIT, expand, is_file, is_folder

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "ppm"})
_LABELS = frozenset({"cls", "json"})
_WORDS = {name: split for split, names in SPLIT_NAMES.items() for name in names}
# The largest public sets have some ten thousand shards.
_MOST_SHARDS = 100_000
_MOST_BRACES = 16
_MOST_CLASSES = 1_000_000
# Bytes of a stored image.
_LARGEST = 2**28
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One image of a shard: its key, its bytes (offset and size in the shard), its label if it has one."""

    key: str
    offset: int
    size: int
    label: int | None


def find_shards(location: str | None) -> list[Path]:
    """Return the shards that ``location`` names: sorted for a folder or a glob, in order for braces.

    Raises:
        UserError: there are none, or one that a brace pattern names is missing.
    """
    if not location:
        raise UserError(
            "'webdataset' needs shards: write webdataset:PATTERN, e.g. 'webdataset:train-{000..127}.tar'."
        )
    path = expand(location)
    if _BRACES.search(str(path)):
        shards = [Path(name) for name in islice(_expand(str(path)), _MOST_SHARDS + 1)]
        if len(shards) > _MOST_SHARDS:
            raise UserError(f"{location!r} names more than {_MOST_SHARDS:,} shards; check its numbers.")
    elif is_folder(path):
        shards = sorted(shard for shard in (*path.glob("*.tar"), *path.glob("*/*.tar")) if split_of(shard))
    elif is_file(path):
        shards = [path]
    else:
        anchor = Path(path.anchor)
        try:
            shards = sorted(anchor.glob(str(path.relative_to(anchor))))
        except (ValueError, NotImplementedError, OSError):
            raise UserError(
                f"{location!r} is no pattern of file names; use * and ** as in data/**/*.tar."
            ) from None
    if not shards:
        raise UserError(
            f"There are no shards at {location!r}; name tar files, or a folder with <split>-*.tar."
        )
    missing = [shard for shard in shards if not is_file(shard)]
    if missing:
        raise UserError(f"There is no shard {str(missing[0])!r}, which {location!r} names.")
    return shards


def split_of(shard: Path) -> str | None:
    """Return the split that a word of the shard's name says, or else the name of its folder; None if neither does."""
    for word in (*re.split(r"[-_.]", shard.stem), shard.parent.name):
        if word in _WORDS:
            return _WORDS[word]
    return None


def _expand(pattern: str) -> Iterator[str]:
    """Yield the names of a brace pattern: ``{a,b}``, ``{0..3}``, ``{000..127}`` (as many digits as written)."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    if pattern.count("{") > _MOST_BRACES:
        raise UserError(f"A pattern has at most {_MOST_BRACES} pairs of braces; got {pattern.count('{')}.")
    bounds = re.fullmatch(r"(\d{1,12})\.\.(\d{1,12})", braces[1])
    if bounds:
        numbers = range(int(bounds[1]), int(bounds[2]) + 1)
        choices: Iterable[str] = (str(number).zfill(len(bounds[1])) for number in numbers)
    else:
        choices = braces[1].split(",")
    for choice in choices:
        yield from _expand(pattern[: braces.start()] + choice + pattern[braces.end() :])


def read_index(shard: Path) -> list[ShardRecord]:
    """Return the records of ``shard`` that hold an image, in order.

    Raises:
        UserError: the shard is no (uncompressed) tar or truncated, a record has two images, a label is no integer.
    """
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int | None] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                key, extension = _key(member.name)
                if not member.isreg():
                    continue
                if not is_unicode(key) or member.issparse():
                    problem = "is a sparse file" if member.issparse() else "is not called in UTF-8"
                    raise UserError(f"{member.name!r} of {str(shard)!r} {problem}, which is not read.")
                if extension in _IMAGES | _LABELS and not _stays(key):
                    raise UserError(f"{member.name!r} of {str(shard)!r} leads out of a folder; rename it.")
                if extension in _IMAGES and member.size > _LARGEST:
                    raise UserError(
                        f"{member.name!r} of {str(shard)!r} has {member.size:,} bytes, too many for an image."
                    )
                if extension in _IMAGES:
                    if key in images:
                        raise UserError(f"The record {key!r} of {str(shard)!r} holds two images.")
                    images[key] = (member.offset_data, member.size)
                elif extension == "cls" or (extension == "json" and key not in labels):
                    labels[key] = _label(tar, member, shard=shard, as_text=extension == "cls")
            _check_end(tar)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(
            f"The shard {str(shard)!r} is truncated, or no uncompressed tar file: {error}."
        ) from error
    return [ShardRecord(key, offset, size, labels.get(key)) for key, (offset, size) in images.items()]


def _key(member: str) -> tuple[str, str]:
    """Split a member's name at the first dot after its folder: ``a/b.jpg`` -> (``a/b``, ``jpg``)."""
    folder, slash, base = member.removeprefix("./").rpartition("/")
    key, _, extension = base.partition(".")
    return folder + slash + key, extension.lower()


def _stays(key: str) -> bool:
    """Whether a record's key, which names its mask and its image in tables, stays in a folder it is put into."""
    return not key.startswith("/") and ".." not in re.split(r"[/\\\\]", key)


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo, *, shard: Path, as_text: bool) -> int | None:
    """Return the label in a ``.cls`` or ``.json`` member; None where the JSON has none."""
    if member.size > JSON_LIMIT:
        raise UserError(f"The label {member.name!r} of {str(shard)!r} has {member.size:,} bytes.")
    file = tar.extractfile(member)
    assert file is not None, "a regular file"
    content = file.read()
    if len(content) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    try:
        value = int(content) if as_text else json.loads(content).get("label")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"The label {member.name!r} of {str(shard)!r} cannot be read.") from error
    if value is not None and (type(value) is not int or not 0 <= value < _MOST_CLASSES):
        raise UserError(
            f"The label {member.name!r} of {str(shard)!r} must be an integer from 0 on, below {_MOST_CLASSES:,}, "
            f"not {str(value)[:40]!r}."
        )
    return value


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise ``ReadError`` unless the archive ends with the empty block that says so.

    Without it the shard was cut between two members, or a header is damaged: tarfile then ends as if all were well.
    """
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it does not end as a tar file does")


class Webdataset(ImageDataset):
    """Tar shards (WebDataset): a folder, a glob pattern or a brace pattern.

    Every shard is read through once, for its headers and labels; after that an image costs one seek. A shard is opened
    again for each image, which costs little next to decoding: workers share no file position, and thousands of shards
    need no thousands of open files. Image ids are ``shard/key``, or ``split/shard/key`` where a folder names the
    split; class names are the numbers from 0 to the highest label of the split.
    """

    is_encoded = True

    def __init__(self, *, split: str, location: str | None = None) -> None:
        shards = find_shards(location)
        split_by_shard = {shard: split_of(shard) for shard in shards}
        if not any(split_by_shard.values()):
            split_by_shard = dict.fromkeys(shards, "test")
        check_split(split, [name for name in self.splits if name in split_by_shard.values()])
        self._shards = [shard for shard in shards if split_by_shard[shard] == split]
        records = [
            (number, record) for number, shard in enumerate(self._shards) for record in read_index(shard)
        ]
        if not records:
            raise UserError(f"There are no images in the shards of {location!r} for the split {split!r}.")
        # Columns, not objects: an ImageNet of records weighs on every worker.
        self._where = np.array(
            [(number, record.offset, record.size) for number, record in records], dtype=np.int64
        )
        self._labels = [record.label for _, record in records]
        self.image_ids = [f"{_prefix(self._shards[number])}/{record.key}" for number, record in records]
        self._check_unique(records)
        highest = max((label for label in self._labels if label is not None), default=None)
        self.class_names = None if highest is None else tuple(str(label) for label in range(highest + 1))

    def example(self, index: int) -> Example:
        """Return record ``index``, in the order of the shards and of the records in them."""
        number, offset, size = (int(value) for value in self._where[index])
        name = f"{self.image_ids[index]!r} of {str(self._shards[number])!r}"
        try:
            with self._shards[number].open("rb") as file:
                file.seek(offset)
                content = file.read(size)
        except OSError as error:
            raise UserError(f"The image {name} cannot be read: {error.strerror}.") from error
        return Example(
            open_rgb(io.BytesIO(content), name=name), self.image_ids[index], label=self._labels[index]
        )

    def _check_unique(self, records: list[tuple[int, ShardRecord]]) -> None:
        shard_by_id: dict[str, int] = {}
        for image_id, (number, _) in zip(self.image_ids, records, strict=True):
            first = shard_by_id.setdefault(image_id, number)
            if first != number:
                raise UserError(
                    f"{str(self._shards[first])!r} and {str(self._shards[number])!r} both hold {image_id!r}; "
                    "rename one of the shards."
                )


def _prefix(shard: Path) -> str:
    """Return what the shard contributes to the id of its images."""
    in_folder = split_of(Path(shard.name)) is None and split_of(shard) is not None
    return f"{split_of(shard)}/{shard.stem}" if in_folder else shard.stem
