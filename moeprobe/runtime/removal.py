"""Folders made and removed again with their files."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from moeprobe.errors import UserError
from moeprobe.runtime.files import shown, status
from moeprobe.runtime.records import LOCK


def make_folder(path: Path) -> list[Path]:
    """Make a folder; returns those that were missing, the innermost first.

    Raises:
        UserError: it cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if status(folder) is None]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write {shown(path)}: {error.strerror or error}.") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the empty ones among the folders; the innermost come first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_files(path: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, and the folders inside that held nothing else.

    Raises:
        UserError: one cannot be removed.
    """
    names = tuple(names)
    for name in names:
        try:
            (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"Cannot replace {shown(path / name)}: {error.strerror or error}.") from error
    remove_empty_around(path, names)


def remove_empty_around(path: Path, names: Iterable[str]) -> None:
    """Remove the folders inside a folder that held these files and hold nothing any more; no file is removed."""
    around = {path / parent for name in names for parent in PurePosixPath(name).parents} - {path}
    for folder in around:
        with contextlib.suppress(OSError):
            # A lock that nobody else holds is all that may be left of a run inside.
            if os.listdir(folder) == [LOCK]:  # noqa: PTH208
                (folder / LOCK).unlink(missing_ok=True)
    remove_empty(sorted(around, key=lambda folder: len(folder.parts), reverse=True))
