"""What is looked at before a library reads a folder, or before hours of computing end in it."""

import os
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import absolute, is_file, is_folder, is_there, shown, status

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
    existing = next(one for one in (absolute(folder), *absolute(folder).parents) if is_there(one))
    if not is_folder(existing):
        raise UserError(f"Cannot write {folder}: {shown(existing)} is no folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write {folder}: {shown(existing)} is not writable.")
