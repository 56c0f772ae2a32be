"""Tar shards: which ones a pattern names, and where in each of them the images lie."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moeprobe.errors import UserError

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "ppm"})
_WORDS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Record:
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
    path = Path(location).expanduser()
    if _BRACES.search(str(path)):
        shards = [Path(name) for name in _expand(str(path))]
    elif path.is_dir():
        shards = sorted(shard for shard in (*path.glob("*.tar"), *path.glob("*/*.tar")) if split_of(shard))
    elif path.is_file():
        shards = [path]
    else:
        anchor = Path(path.anchor)
        shards = sorted(anchor.glob(str(path.relative_to(anchor))))
    if not shards:
        raise UserError(
            f"There are no shards at {location!r}; name tar files, or a folder with <split>-*.tar."
        )
    missing = [shard for shard in shards if not shard.is_file()]
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
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if bounds:
        numbers = range(int(bounds[1]), int(bounds[2]) + 1)
        choices: Iterable[str] = (str(number).zfill(len(bounds[1])) for number in numbers)
    else:
        choices = found[1].split(",")
    for choice in choices:
        yield from _expand(pattern[: found.start()] + choice + pattern[found.end() :])


def read_index(shard: Path) -> list[Record]:
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
                if extension in _IMAGES:
                    if key in images:
                        raise UserError(f"The record {key!r} of {str(shard)!r} holds two images.")
                    images[key] = (member.offset_data, member.size)
                elif extension == "cls" or (extension == "json" and key not in labels):
                    labels[key] = _label(tar, member, shard=shard, as_text=extension == "cls")
            _check_end(tar)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(
            f"The shard {str(shard)!r} is truncated, or no uncompressed tar file: {error}."
        ) from error
    return [Record(key, offset, size, labels.get(key)) for key, (offset, size) in images.items()]


def _key(member: str) -> tuple[str, str]:
    """Split a member's name at the first dot after its folder: ``a/b.jpg`` -> (``a/b``, ``jpg``)."""
    folder, slash, base = member.removeprefix("./").rpartition("/")
    key, _, extension = base.partition(".")
    return folder + slash + key, extension.lower()


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo, *, shard: Path, as_text: bool) -> int | None:
    """Return the label in a ``.cls`` or ``.json`` member; None where the JSON has none."""
    file = tar.extractfile(member)
    assert file is not None, "a regular file"
    content = file.read()
    if len(content) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    try:
        value = int(content) if as_text else json.loads(content).get("label")
    except (ValueError, AttributeError) as error:
        raise UserError(f"The label {member.name!r} of {str(shard)!r} cannot be read.") from error
    if value is not None and (not isinstance(value, int) or value < 0):
        raise UserError(
            f"The label {member.name!r} of {str(shard)!r} must be an integer from 0 on, not {value!r}."
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
