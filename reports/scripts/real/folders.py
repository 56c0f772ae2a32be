"""Folders that are written whole or not at all, so that an interrupted ``make real`` goes on where it stopped."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``, which gets this name when the block ends without an error.

    What an interrupted block left beside it is removed first.

    Raises:
        OSError: ``folder`` is there and not empty.
    """
    temporary = folder.with_name(f".{folder.name}.unfinished")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    yield temporary
    temporary.rename(folder)
