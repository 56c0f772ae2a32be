"""Files in object stores (S3, Google Cloud Storage, Azure): each is copied once into the user's folder for caches.

A question hashes all bytes of a file before it reads its rows, so every byte is needed; a copy fetches it once. A copy
holds as long as the object has the same size and time of its last change.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from moeprobe.errors import UserError
from moeprobe.runtime.file_hashes import cache_folder
from moeprobe.runtime.files import atomic_file, is_file, read_json, write_json
from moeprobe.runtime.locks import Lock
from moeprobe.runtime.progress import Progress

# Not at once: most paths are local.
if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

# What is read under its own name; any other store through ``fsspec``, e.g. ``fsspec+sftp://``.
_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "hf")
# A ``Path`` makes one slash of the two, also in settings.
_ADDRESS = re.compile(rf"({'|'.join(_STORES)}|fsspec\+[a-z0-9]+):/{{1,2}}(?=[^/])")
_WILDCARDS = re.compile(r"[*?\[]")
_SETTINGS = re.compile(r"\?(?=[A-Za-z_]\w*=)")
_PART = 2**22
# Arrow asks Google's store again for 15 minutes unless it is told otherwise.
_GOOGLE, _PATIENCE = ("gs", "gcs"), "retry_limit_seconds"
_SECONDS = 30
# Some clients quote all their attempts.
_LONGEST_REASON = 300
# Copies of objects without a time, which are taken for the present ones until this process ends.
_UNDATED: set[Path] = set()
# What addresses stand for, by the address and the suffix; None = it is asked each time.
_LISTINGS: ContextVar["dict[tuple[str, str], tuple[FileSystem, list[FileInfo]]] | None"] = ContextVar(
    "listings", default=None
)


def is_remote(path: str | Path) -> bool:
    """Whether a path is an address in an object store; one slash is enough in a ``Path``, which keeps no second.

    As a text, ``hf:/models/olmoe`` is a model in a folder.

    >>> from moeprobe.runtime.object_stores import is_remote
    >>> [is_remote(path) for path in ("s3://traces/served.parquet", "traces/served.parquet", "hf:/models/olmoe")]
    [True, False, False]
    """
    return _ADDRESS.match(str(path)) is not None and (isinstance(path, Path) or "://" in path)


def spell(path: str | Path) -> str:
    """Return a path as the user typed it, for a command: an address with both of its slashes, with its settings."""
    if not is_remote(path):
        return str(path)
    scheme, name, settings = _split(path)
    return f"{scheme}://{name}" + f"?{settings}" * bool(settings)


def address_of(path: str | Path) -> str:
    """Return an address with both of its slashes and without its settings, as sentences show it."""
    scheme, name, _ = _split(path)
    return f"{scheme}://{name}"


def check_local(path: Path) -> None:
    """Raise ``UserError`` where something is to be written into an object store."""
    if is_remote(path):
        raise UserError(
            f"Cannot write {address_of(path)}: name a local path, and copy what is written there."
        )


@contextlib.contextmanager
def listed_once() -> Iterator[None]:
    """Within the block, ask once for what an address stands for: a command reads the same objects throughout."""
    token = _LISTINGS.set({})
    try:
        yield
    finally:
        _LISTINGS.reset(token)


def copies_of(path: str | Path, *, suffix: str, watcher: Progress | None = None) -> list[Path]:
    """Return local copies of an object, of those in a folder, or of those that match a pattern, in their order.

    Args:
        path: the address, e.g. ``s3://bucket/traces/*.parquet``.
        suffix: of the objects that a folder is looked through for.
        watcher: receives how many megabytes have come.

    Raises:
        UserError: the store cannot be read, or has no such object.
    """
    _check_keyless(path)
    listings, key = _LISTINGS.get(), (str(path), suffix)
    listing = None if listings is None else listings.get(key)
    if listing is None:
        with _reading(path):
            listing = _find(path, suffix)
        if listings is not None:
            listings[key] = listing
    store, objects = listing
    return [_copy(store, entry, path, watcher or Progress()) for entry in objects]


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Raise ``UserError`` where a store answers with an error; its client raises some of its own kinds."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".") or type(error).__name__
        raise UserError(f"Cannot read {address_of(path)}: {reason}.") from error


def _check_keyless(path: str | Path) -> None:
    """Raise ``UserError`` where an address holds a key, which would stand in tables and sentences."""
    _, name, settings = _split(path)
    # A secret may hold a slash; names of Azure's containers stand before an at sign, without a colon.
    user, at, _ = name.partition("@")
    if (at and ":" in user) or re.search(r"(key|secret|token|password)\w*=", settings, re.IGNORECASE):
        raise UserError(
            "An address takes no keys; give them to the store's own settings, e.g. AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
        )


def _find(path: str | Path, suffix: str) -> "tuple[FileSystem, list[FileInfo]]":
    """Return the store of an address, and the objects that it stands for."""
    from pyarrow.fs import FileType

    scheme, name, settings = _split(path)
    if scheme in _GOOGLE and _PATIENCE not in settings:
        settings = "&".join(filter(None, (settings, f"{_PATIENCE}={_SECONDS}")))
    plain = _WILDCARDS.split(name)[0]
    root = plain.rpartition("/")[0] if plain != name else plain
    store, inside = _open_store(f"{scheme}://{root}" + f"?{settings}" * bool(settings))
    if plain != name:
        pattern = name[len(root) :].strip("/").split("/")
        entries = [
            info
            for info in _listing(store, inside, recursive=len(pattern) > 1)
            if _matches(info.path[len(inside) :].strip("/").split("/"), pattern)
        ]
        what = "no object matches the pattern"
    else:
        info = store.get_file_info(inside)
        is_folder = info.type is FileType.Directory
        entries = [info] if info.type is FileType.File else []
        if is_folder:
            entries = [part for part in _listing(store, inside) if part.path.endswith(suffix)]
        what = f"the folder has no {suffix} files" if is_folder else "there is no such object"
    if not entries:
        raise UserError(f"Cannot read {address_of(path)}: {what}.")
    return store, entries


def _open_store(address: str) -> "tuple[FileSystem, str]":
    """Return the store of an address, and the path in it."""
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    # Arrow hands these to fsspec itself, but not in all releases that moeprobe takes.
    if not address.startswith(("fsspec+", "hf://")):
        return FileSystem.from_uri(address)
    from fsspec.core import url_to_fs

    store, inside = url_to_fs(address.removeprefix("fsspec+"))
    return PyFileSystem(FSSpecHandler(store)), inside


def _listing(store: "FileSystem", folder: str, *, recursive: bool = False) -> "list[FileInfo]":
    from pyarrow.fs import FileSelector, FileType

    # Hidden files, and those that begin with an underscore, are notes of programs that write in parts.
    infos = store.get_file_info(FileSelector(folder, recursive=recursive))
    files = [info for info in infos if info.type is FileType.File]
    return sorted(
        (info for info in files if not info.base_name.startswith((".", "_"))), key=lambda info: info.path
    )


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the names of a path match a pattern, name by name; ``**`` stands for any number of them."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches(names[skipped:], pattern[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def _copy(store: "FileSystem", entry: "FileInfo", path: str | Path, watcher: Progress) -> Path:
    """Return the copy of an object in a folder of its own, which is made unless it is of the present object."""
    if entry.size is None:
        raise UserError(f"Cannot read {address_of(path)}: the store does not say how many bytes it has.")
    home = _home(path, entry.path)
    # Hidden, as no object that is read.
    copy, note = home / Path(entry.base_name).name, home / ".object.json"
    facts = [entry.size, entry.mtime_ns]
    home.mkdir(parents=True, exist_ok=True)
    # Ranks of one command ask for the same object.
    with Lock(home / ".lock", wait=True):
        is_known = copy in _UNDATED or (is_file(note) and read_json(note) == facts)
        if is_known and is_file(copy) and copy.stat().st_size == entry.size:
            return copy
        note.unlink(missing_ok=True)
        _check_room(home, entry)
        watcher.start(f"copy of {entry.base_name}", -(-entry.size // _PART) * _PART >> 20)
        with atomic_file(copy) as temporary, temporary.open("wb") as file:
            for part in _parts(store, entry, path):
                file.write(part)
                watcher.advance(_PART >> 20)
        if copy.stat().st_size != entry.size:
            raise UserError(
                f"Cannot read {entry.path}: {copy.stat().st_size:,} of its {entry.size:,} bytes have come; give the "
                "command again."
            )
        if entry.mtime_ns is None:
            _UNDATED.add(copy)
        else:
            write_json(note, facts)
    return copy


def _parts(store: "FileSystem", entry: "FileInfo", path: str | Path) -> Iterator[bytes]:
    with _reading(path), store.open_input_stream(entry.path) as stream:
        while part := stream.read(_PART):
            yield part


def _check_room(folder: Path, entry: "FileInfo") -> None:
    """Raise ``UserError`` where a disk has no room for an object."""
    free = shutil.disk_usage(folder).free
    if entry.size > free:
        raise UserError(
            f"{entry.path} has {entry.size:,} bytes, and {folder} has room for {free:,}; let XDG_CACHE_HOME name a "
            "folder on a larger disk."
        )


def _home(path: str | Path, name: str) -> Path:
    """Return the folder for the copy of an object; stores at different addresses may have objects of one name."""
    scheme, address, settings = _split(path)
    # Not all stores have the host in the names of their objects.
    key = "\n".join((scheme, address.partition("/")[0], settings, name))
    return cache_folder() / "objects" / hashlib.sha256(os.fsencode(key)).hexdigest()[:32]


def _split(path: str | Path) -> tuple[str, str, str]:
    """Return the scheme of an address, the name behind its slashes, and the settings behind ``?``.

    A pattern may hold a question mark; settings begin with a name and an equals sign (region=eu-west-1).
    """
    scheme, _, address = str(path).partition(":")
    name, *settings = _SETTINGS.split(address.lstrip("/"), maxsplit=1)
    return scheme, name, re.sub(r":/(?=[^/])", "://", settings[0]) if settings else ""
