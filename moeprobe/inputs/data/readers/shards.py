"""Tar shards: which ones a pattern names, and the positions of the images in each of them."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import JSON_LIMIT, expanded, is_file, is_folder

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "ppm"})
_LABELS = frozenset({"cls", "json"})
_WORDS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}
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
    path = expanded(location)
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
