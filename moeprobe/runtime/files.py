"""Write files whole or not at all; read regular files of a bounded size only."""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import secrets
import shutil
import stat
import struct
import tempfile
import tokenize
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moeprobe.errors import UserError
from moeprobe.runtime.characters import neutral

if TYPE_CHECKING:
    import pandas as pd

# What torch may raise when it reads a damaged or hostile file.
DAMAGE = (
    OSError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError,
    AssertionError, ArithmeticError, MemoryError, RecursionError, zipfile.BadZipFile, struct.error,
)  # fmt: skip

# What NumPy may raise when it reads a damaged .npy file, whose header it parses as Python.
NPY_DAMAGE = (
    OSError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, SyntaxError, MemoryError, RecursionError,
    tokenize.TokenError,
)  # fmt: skip

# Inode, size, and time of the last change.
Version = tuple[int, int, int]


class Guard(Protocol):
    """Who has a folder, and wants to know what happens in it (see ``folders``)."""

    def writing(self, path: Path) -> None:
        """Note that a file, by its absolute path, is about to be written; raises ``UserError`` if it must not be."""

    def removing(self, path: Path) -> None:
        """Note that a file, by its absolute path, is removed on purpose; raises ``UserError`` if it must not be."""


# By the absolute path of the folder.
GUARDS: dict[Path, Guard] = {}


def absolute(path: Path) -> Path:
    """Return a path from the root on, without following links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  (which follows them)


def resolve(path: Path) -> Path:
    """Return a path with its links followed; one that leads to itself stays as it is, in every version of Python."""
    return Path(os.path.realpath(path))


def display_path(path: Path) -> Path:
    """Return a path as messages show it: relative to the working directory if it is inside."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):  # the working directory is gone, or the path is elsewhere
        return path


def version_of(path: Path) -> Version:
    """Return what tells a file from others that are at the same path before it or after."""
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def guard_of(path: Path) -> Guard | None:
    """Return the owner of the innermost guarded folder that contains an absolute path; None if there is none."""
    return next((GUARDS[folder] for folder in path.parents if folder in GUARDS), None)


# A description of a checkpoint or a run has some kilobytes, or megabytes with very many classes or images.
JSON_LIMIT = 16 * 2**20


def open_regular(path: Path, *, buffered: bool = True) -> Any:
    """Open a regular file, or a link to one, for reading bytes; never waits for a FIFO or a device.

    Raises:
        UserError: it cannot be opened, or is something else than a regular file.
    """
    handle = None
    try:
        # Not to block is what makes it safe to open first and look afterwards, at what was opened indeed.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UserError(f"Cannot read {path}: it is not a regular file.")
        return os.fdopen(handle, "rb", buffering=-1 if buffered else 0)
    except (OSError, ValueError, UserError) as error:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)
        if isinstance(error, UserError):
            raise
        raise UserError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def expand(location: str | Path) -> Path:
    """Return a path with ``~`` expanded; one of a user who does not exist stays as it is, and so leads nowhere."""
    return Path(os.path.expanduser(location))  # noqa: PTH111 - Path.expanduser raises


def status(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """Return what the file system says of a path, and None only where it says that nothing is there.

    ``os.path.exists`` and its kin return False for every error. A server that does not answer would then look like a
    missing file, and acting on that may cost results.

    Args:
        path: the path to check; a name that no file can have counts as missing.
        follow: of a link, look at what it leads to.

    Raises:
        UserError: the file system cannot tell.
    """
    try:
        return os.stat(path, follow_symlinks=follow)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        # A user may type a name that is too long, or one of a link to itself.
        if follow and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise UserError(f"Cannot read {display_path(path)}: {error.strerror or error}.") from error


def is_there(path: Path) -> bool:
    """Whether anything is at a path, be it a link that leads nowhere; raises what ``status`` raises."""
    return status(path, follow=False) is not None


def is_file(path: Path) -> bool:
    """Whether a regular file is there; raises what ``status`` raises."""
    state = status(path)
    return state is not None and stat.S_ISREG(state.st_mode)


def is_folder(path: Path) -> bool:
    """Whether a folder is there; raises what ``status`` raises."""
    state = status(path)
    return state is not None and stat.S_ISDIR(state.st_mode)


def check_regular(path: Path) -> None:
    """Raise ``UserError`` unless ``path`` is a regular file, or a link to one, that can be opened for reading."""
    open_regular(path).close()


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises:
        UserError: it cannot be read, is no regular file, or is larger; no more than ``limit`` is ever read.
    """
    with open_regular(path) as file:
        try:
            # What says of itself that it is larger is not read; what grows meanwhile is found all the same.
            content = file.read(limit + 1) if os.fstat(file.fileno()).st_size <= limit else None
        except OSError as error:
            raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error
    if content is None or len(content) > limit:
        raise UserError(f"Cannot read {path}: it has more than {limit:,} bytes.")
    return content


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> Any:
    """Return what a JSON file of at most ``limit`` bytes holds.

    Raises:
        UserError: it cannot be read, is no regular file, is larger, or is no JSON.
    """
    return parse_json(path, read_bytes(path, limit=limit))


def parse_json(path: Path, content: bytes) -> Any:
    """Return what JSON holds; ``path`` is for the sentence.

    Raises:
        UserError: it is no JSON, or nested too deeply for Python.
    """
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise UserError(f"Cannot read {path}: it is nested too deeply.") from error
    except ValueError as error:
        raise UserError(f"Cannot read {path}: it is not JSON ({error}).") from error


class Scratch:
    """A temporary folder that lives as long as the object; ``inside`` another, or where the system has such folders."""

    def __init__(self, inside: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="moeprobe-", dir=inside))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name next to ``path``; when the block succeeds it is flushed to disk and renamed to ``path``.

    Who may read the file is up to the ``umask``.

    Raises:
        UserError: the folder cannot be written to, or the disk is full. No partial file remains.
    """
    # Where that is now, or a block that changes the working directory would have it renamed to another place.
    path = absolute(path)
    if (guard := guard_of(path)) is not None:
        guard.writing(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by tempfile, whose files are for the owner alone; the name is one that ``records`` knows.
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        temporary = name
        os.close(handle)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise UserError(f"Cannot write {display_path(path)}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # what went wrong before is what counts
                temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file that was written, if it is there.

    Raises:
        UserError: it cannot be removed.
    """
    if (guard := guard_of(absolute(path))) is not None:
        guard.removing(absolute(path))
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"Cannot remove {path}: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any, *, compact: bool = False) -> None:
    """Write a JSON file, whole or not at all; with ``compact`` in one line, for a large file that nobody reads."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_text(path, json.dumps(content, ensure_ascii=False, **layout) + "\n")


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Write a table; ten significant digits, which is less than the rounding of a sum in another order.

    Texts that a spreadsheet would take for a formula get a leading apostrophe (``characters.neutral``).
    """
    import csv

    import pandas as pd  # whoever has a table has loaded it

    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    table = table.assign(**{name: table[name].map(_as_cell) for name in texts})
    # Python's writer leaves a carriage return unquoted, and readers end the line there.
    returns = any(table[name].astype("str").str.contains("\r").any() for name in texts)
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    with atomic_file(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n", quoting=quoting)


def _as_cell(value: object) -> object:
    return neutral(value) if isinstance(value, str) else value


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_same_bytes(first: Path, second: Path) -> bool:
    """Whether two regular files are there, with the same content."""
    if not (is_file(first) and is_file(second)) or first.stat().st_size != second.stat().st_size:
        return False
    return sha256(first) == sha256(second)


_MOST_FILES = 100_000


def check_regular_files(folder: Path, pattern: str) -> None:
    """Raise ``UserError`` if a library that reads a folder would meet a FIFO, a device, or files without end.

    Args:
        folder: the folder to search; links in it are not followed to other folders.
        pattern: of the names, e.g. ``"*"`` or ``"**/*"``.
    """
    try:
        for number, path in enumerate(folder.glob(pattern)):
            if number == _MOST_FILES:
                raise UserError(
                    f"{folder} holds more than {_MOST_FILES:,} files; name the folder of the data alone."
                )
            if status(path) is not None and not is_folder(path) and not is_file(path):
                raise UserError(f"Cannot read {path}: it is not a regular file.")
    except OSError as error:
        raise UserError(f"Cannot read {folder}: {error.strerror or error}.") from error


def check_can_write(folder: Path) -> None:
    """Raise ``UserError`` unless a folder is there that can be written to, or could be made; nothing is made.

    A later attempt may fail nevertheless; call this before hours of computing.
    """
    existing = next(level for level in (absolute(folder), *absolute(folder).parents) if is_there(level))
    if not is_folder(existing):
        raise UserError(f"Cannot write {folder}: {display_path(existing)} is no folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write {folder}: {display_path(existing)} is not writable.")
