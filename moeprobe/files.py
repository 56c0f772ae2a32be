"""Files are written whole or not at all."""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError

# What torch may raise when it reads a damaged or hostile file.
DAMAGE = (
    OSError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError,
    AssertionError, ArithmeticError, MemoryError, RecursionError, zipfile.BadZipFile, struct.error,
)  # fmt: skip


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; when the block succeeds it is flushed to disk and renamed to ``path``.

    Raises:
        UserError: the folder cannot be written to, or the disk is full. Nothing half-written is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` that takes its place, and that of what is there, when the block succeeds.

    Raises:
        UserError: the folder cannot be written to. Nothing half-written is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2, sort_keys=False, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
