"""Which files of a folder moeprobe wrote: by the folder's own record, or by their names where it has none.

``.moeprobe.files`` holds a line of JSON per file, written before the file is. What ``--overwrite`` removes are these
files and no others. A folder without a record, of an earlier version or copied without it, is moeprobe's if a file in
it says so by its content: what ``Family.patterns`` names then counts as written by moeprobe. Where none does,
nothing is, whatever its name.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_folder, is_there, read_bytes

LOCK, RECORD, NEW_RECORD = ".moeprobe.lock", ".moeprobe.files", ".moeprobe.files.new"
_RECORD_LIMIT = 64 * 2**20
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.tmp")
# Names that a sentence lists.
_SHOWN = 3


@dataclass(frozen=True)
class Family:
    """A kind of folder.

    Attributes:
        name: in the record, and in sentences after "a", e.g. "training".
        patterns: what files a folder without a record may hold, judging by the content of its files; level by level,
            those ending in ``/`` are such folders in themselves. Empty = it is not of this kind.
        always: files that another library writes under names of its own, record or not.
        shares: other files may be in the same folder.
    """

    name: str
    patterns: Callable[[Path], tuple[str, ...]]
    always: tuple[str, ...] = ()
    shares: bool = False


@dataclass(frozen=True)
class Contents:
    """The contents of a folder, as paths relative to it; a folder that is foreign as a whole ends in ``/``.

    Attributes:
        own: files that moeprobe wrote.
        temporary: files of writers that were interrupted or are still at work.
        foreign: all other files.
        runs: folders inside that are runs of their own, which another process may be writing; their files are among
            the above.
        recorded: whether there is a record.
        of: the family that the record names; empty where there is none.
    """

    own: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    recorded: bool = False
    of: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing but what an interrupted moment leaves."""
        return not self.own and not self.foreign


def scan(path: Path, family: Family) -> Contents:
    """Return the contents of a folder; nothing is changed.

    Raises:
        UserError: the folder or its record cannot be read, or ``path`` is no folder.
    """
    if not is_folder(path):
        if is_there(path):
            raise UserError(f"{path} is a file; give a folder.")
        return Contents()
    record = read_record(path)
    if record is None:
        patterns = family.patterns(path)
        names = _Names(patterns=patterns + family.always) if patterns else _Names()
    else:
        names = _Names(record.names, family.always)
    own: list[str] = []
    temporary: list[str] = []
    foreign: list[str] = []
    runs: list[str] = []
    try:
        for name, below in _walk(path, names):
            if below and names.holds(name):
                inner = scan(path / name, family)
                nested = (*inner.own, *((RECORD,) if inner.recorded else ()))
                own += [name + one for one in nested]
                temporary += [name + one for one in inner.temporary]
                foreign += [name + one for one in inner.foreign]
                runs += [name, *(name + one for one in inner.runs)]
            elif names.holds(name):
                own.append(name)
            else:
                (temporary if names.holds_finished(name) else foreign).append(name)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error
    return Contents(
        tuple(own),
        tuple(temporary),
        tuple(foreign),
        tuple(runs),
        recorded=record is not None,
        of=record.of if record else "",
    )


def list_names(names: tuple[str, ...]) -> str:
    """Return some of the names, for a sentence."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True)
class Record:
    """Files of a folder, and folders in it that have a record of their own; these end in ``/``."""

    names: frozenset[str] = frozenset()
    of: str = ""
    whole: bool = True


def read_record(path: Path) -> Record | None:
    """Return the record of a folder; None where there is none. Lines that are no names inside the folder are none."""
    if not is_there(path / RECORD):
        return None
    content = read_bytes(path / RECORD, limit=_RECORD_LIMIT)
    names, of = set(), ""
    for number, line in enumerate(content.split(b"\n")):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, str) and not {"", "..", "."} & set(entry.removesuffix("/").split("/")):
            names.add(entry)
        elif number == 0 and isinstance(entry, dict):
            of = str(entry.get("of", ""))
    return Record(frozenset(names), of, content.endswith(b"\n") or not content)


@dataclass(frozen=True)
class _Names:
    """Which paths of a folder are moeprobe's: by name, and by pattern."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    def holds(self, name: str) -> bool:
        return name in self.names or any(_matches(name, pattern) for pattern in self.patterns)

    def holds_below(self, folder: str) -> bool:
        return any(name.startswith(folder) for name in self.names) or any(
            _begins(folder, pattern) for pattern in self.patterns
        )

    def holds_finished(self, name: str) -> bool:
        """Whether a file is the temporary one of a file of moeprobe's."""
        folder, slash, last = name.rpartition("/")
        temporary = _TEMPORARY.fullmatch(last)
        return temporary is not None and self.holds(folder + slash + temporary[1])


def _matches(name: str, pattern: str) -> bool:
    parts, pattern_parts = name.split("/"), pattern.split("/")
    return (
        len(parts) == len(pattern_parts)
        and name.endswith("/") == pattern.endswith("/")
        and all(map(fnmatchcase, parts, pattern_parts))
    )


def _begins(folder: str, pattern: str) -> bool:
    parts, pattern_parts = folder.removesuffix("/").split("/"), pattern.split("/")
    return len(parts) < len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts))


def _walk(path: Path, names: _Names, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield files, and folders (ending in ``/``) that are runs of their own or hold nothing of moeprobe's."""
    with os.scandir(path / prefix) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        if name in (LOCK, RECORD, NEW_RECORD):
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield name, False
        elif names.holds(f"{name}/"):
            yield f"{name}/", True
        elif not names.holds_below(f"{name}/"):
            # An empty folder is nothing, but in the place of a file, which could not be written then.
            if names.holds(name) or os.listdir(entry):  # noqa: PTH208
                yield f"{name}/", True
        else:
            yield from _walk(path, names, f"{name}/")
