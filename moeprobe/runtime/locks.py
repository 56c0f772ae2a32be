"""Locks between processes: a file that the operating system locks for as long as its holder lives, and no longer.

The file says who holds it, for the sentence that refuses another; it is there only while somebody does, or after a
crash, and then locks nothing.
"""

import contextlib
import datetime
import errno
import json
import os
import shlex
import socket
import stat
import sys
import time
import warnings
import weakref
from pathlib import Path

from moeprobe.errors import RunWarning, UserError
from moeprobe.runtime.files import absolute, display_path, read_json

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

# Neither through a link, nor waiting for what is no file.
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# File systems that have no locks answer with one of these.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_LONGEST_COMMAND, _LARGEST = 300, 16 * 2**10
_PAUSE = 0.05  # seconds
_HELD: set[int] = set()


class InUseError(UserError):
    """Another process holds a lock."""


class Lock:
    """A lock that is held by this object, until ``release`` or until it or its process is gone.

    Args:
        path: the lock's file; its folder must exist.
        shared: several may hold it who all ask for it shared.
        wait: wait until it is free.
        patience: wait for so many seconds.

    Raises:
        InUseError: another holds it, and that was not waited for.
        UserError: the file cannot be made.
    """

    def __init__(self, path: Path, *, shared: bool = False, wait: bool = False, patience: float = 0) -> None:
        self.path = path = absolute(path)
        self._shared = shared
        self._descriptor = self._take(wait, time.monotonic() + patience)
        _HELD.add(self._descriptor)
        self._write_holder()
        self.release = weakref.finalize(self, _release, self._descriptor, path, os.getpid())

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def make_exclusive(self) -> bool:
        """Turn a shared lock into an exclusive one; returns whether nobody else holds it. Undone by ``share``."""
        if _flock(self._descriptor, exclusive=True, wait=False):
            return True
        # What could not be converted is lost.
        _flock(self._descriptor, exclusive=False, wait=True)
        return False

    def share(self) -> None:
        """Let others in who ask for the lock shared."""
        _flock(self._descriptor, exclusive=False, wait=True)

    def _take(self, wait: bool, until: float) -> int:
        while True:
            descriptor, is_new = self._open()
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise UserError(f"{display_path(self.path)} is not a regular file; remove it.")
                if _flock(descriptor, exclusive=not self._shared, wait=wait):
                    # An earlier holder may have removed the file since it was opened here: it locks nobody out then.
                    if os.fstat(descriptor).st_nlink > 0:
                        return descriptor
                elif time.monotonic() >= until:
                    raise _in_use(self.path)
                else:
                    time.sleep(_PAUSE)
            except BaseException as error:
                if is_new and isinstance(error, OSError):
                    # What cannot be locked is no use, and a folder that was made for it must be empty to go.
                    with contextlib.suppress(OSError):
                        self.path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    os.close(descriptor)
                if isinstance(error, OSError):
                    raise UserError(
                        f"Cannot lock {display_path(self.path)}: {error.strerror or error}."
                    ) from error
                raise
            os.close(descriptor)

    def _open(self) -> tuple[int, bool]:
        """Return the open file, and whether it was made here."""
        try:
            try:
                return os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644), True
            except FileExistsError:
                return os.open(self.path, _FLAGS | os.O_CREAT, 0o644), False
        except OSError as error:
            raise UserError(f"Cannot write {display_path(self.path)}: {error.strerror or error}.") from error

    def _write_holder(self) -> None:
        info = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:_LONGEST_COMMAND],
            "since": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        }
        content = json.dumps(info).encode()
        with contextlib.suppress(OSError):  # a full disk: the lock is held nevertheless
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))


def check_free(path: Path, *, shared: bool = False) -> None:
    """Raise ``InUseError`` where a lock is held, by another process or in this one; nothing is made or kept.

    Args:
        path: the lock's file.
        shared: those who hold it shared do not count.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and not _flock(
            descriptor, exclusive=not shared, wait=False
        ):
            raise _in_use(path)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, *, exclusive: bool, wait: bool) -> bool:
    """Lock an open file; returns whether that went, which it does too, with a warning, where there are no locks."""
    if fcntl is None:
        return True
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            RunWarning(
                "This file system has no locks, so nothing keeps two runs from writing to one folder."
            ),
            stacklevel=5,
        )
    return True


def _release(descriptor: int, path: Path, pid: int) -> None:
    """Remove the file unless others hold the lock too, and give the lock back."""
    if pid != os.getpid():
        return
    _HELD.discard(descriptor)
    with contextlib.suppress(OSError):
        # The folder may have been removed meanwhile, and another made in its place.
        if _flock(descriptor, exclusive=True, wait=False) and os.path.samestat(
            os.fstat(descriptor), path.lstat()
        ):
            path.unlink()
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _in_use(path: Path) -> InUseError:
    return InUseError(f"{display_path(path.parent)} is in use by {_holder(path)}.")


def _holder(path: Path) -> str:
    try:
        info = read_json(path, limit=_LARGEST)
        return f"process {int(info['pid'])} on {info['host']}, since {info['since']}: {info['command']}"
    except (
        UserError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
    ):  # JSON's 1e999 is an infinite number
        return "another process"


def _forget() -> None:
    """Close what a forked process inherits: the workers of a killed process must not keep its locks."""
    for descriptor in _HELD:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
