"""Hashes of large files, computed once: a remembered hash holds as long as the file is the same by its facts.

What is compared is the path, inode, size and both times of the last change. Each hash has a small file of its own in
the user's folder for caches, so programs that run at the same time never lose each other's.
"""

import hashlib
import os
import stat
import sys
from pathlib import Path
from threading import Event

from moeprobe.errors import UserError
from moeprobe.runtime.files import expand, open_regular, read_json, resolve, status, write_json

# Smaller files are read in less time than a remembered hash is worth: tens of milliseconds.
LEAST_SIZE = 16 * 2**20
_PART = 2**22
# File systems may count time in steps of two seconds: a younger file could change without any fact of it changing.
SETTLED_SECONDS = 4.0


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The hash is not wanted any more."""


def hash_file(path: Path, *, stop: Event | None = None) -> str:
    """Return the SHA-256 of a file's bytes, the remembered one where the file is the same.

    Args:
        path: a regular file.
        stop: ends the reading when it is set.

    Raises:
        UserError: it cannot be read.
        Interrupted: ``stop`` was set.
    """
    remembered = remembered_hash(path)
    if remembered is not None:
        return remembered
    digest = hashlib.sha256()
    with open_regular(path, buffered=False) as file:
        before = _facts(os.fstat(file.fileno()))
        try:
            while part := file.read(_PART):
                if stop is not None and stop.is_set():
                    raise Interrupted
                digest.update(part)
        except OSError as error:
            raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error
        after = os.fstat(file.fileno())
    # A file that changed while it was read is read again the next time.
    if _facts(after) == before and _is_worth_it(after):
        _remember(path, before, digest.hexdigest())
    return digest.hexdigest()


def remembered_hash(path: Path) -> str | None:
    """Return the hash that a large file had when it was read; None where it has changed, or was never read."""
    state = status(path)
    if state is None or not stat.S_ISREG(state.st_mode) or not _is_worth_it(state):
        return None
    memory = _entry(path)
    try:
        remembered_at = memory.stat().st_mtime
        entry = read_json(memory)
    except (OSError, UserError):
        return None  # none, or a damaged one: the file is read
    # Remembered too soon after a change, it may be of what was there before another one.
    if remembered_at - max(state.st_mtime, state.st_ctime) <= SETTLED_SECONDS:
        return None
    if not isinstance(entry, dict) or entry.get("facts") != _facts(state):
        return None
    value = entry.get("sha256")
    is_hash = isinstance(value, str) and len(value) == hashlib.sha256().digest_size * 2
    return value if is_hash else None


def _is_worth_it(state: os.stat_result) -> bool:
    return state.st_size >= LEAST_SIZE


def _facts(state: os.stat_result) -> list[int]:
    """Return what changes with a file; the time of its status, too, which copying programs cannot set back."""
    return [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _remember(path: Path, facts: list[int], value: str) -> None:
    entry = _entry(path)
    try:
        write_json(entry, {"path": str(resolve(path)), "facts": facts, "sha256": value})
    except UserError:
        return  # a home that takes no files: the next run reads the file again


def _entry(path: Path) -> Path:
    """Return where the hash of a file is remembered."""
    name = hashlib.sha256(os.fsencode(resolve(path))).hexdigest()
    return _folder() / f"{name}.json"


def _folder() -> Path:
    return cache_folder() / "hashes"


def cache_folder() -> Path:
    """Return the user's folder for what moeprobe can make again."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or expand(usual), "moeprobe")
