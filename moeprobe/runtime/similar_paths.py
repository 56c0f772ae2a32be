"""A path that does not exist, and the one like it that does."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from moeprobe.runtime.catalog import nearest

# Names of a folder that are looked at; what is in larger ones nobody types by hand.
MOST_NAMES = 2000


def did_you_mean_path(path: str | Path, is_wanted: Callable[[Path], bool] = os.path.exists) -> str:
    """Return " Did you mean 'X'?" for the path most like this one, "" if none is.

    Each part that does not exist is replaced by the most similar name in its folder.

    Args:
        path: does not exist, or does not fit.
        is_wanted: whether a path would do; the last part is chosen among those that would.
    """
    path = Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for a user who does not exist
    if _is_safe(path, os.path.exists):  # it is something else than was wanted, and not misspelled
        return ""
    base = next((level for level in (path, *path.parents) if _is_safe(level, Path.is_dir)), None)
    if base is None or base == path:
        return ""
    *folders, last = path.relative_to(base).parts
    folder = base
    for name in folders:
        similar = _most_similar(name, folder, Path.is_dir)
        if similar is None:
            return ""
        folder = similar
    similar = _most_similar(last, folder, is_wanted)
    if similar is not None:
        return f" Did you mean {str(similar)!r}?"
    # The folder is known now, and the name in it is not.
    return f" Did you mean a path in {str(folder)!r}?" if folders else ""


def _most_similar(name: str, folder: Path, is_wanted: Callable[[Path], bool]) -> Path | None:
    """Return the path in a folder whose name is most like this one, among those that fit."""
    exact = folder / name
    if _is_safe(exact, is_wanted):
        return exact
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    except OSError:
        return None
    similar = nearest(name, sorted(entry for entry in names if _is_safe(folder / entry, is_wanted)))
    return None if similar is None else folder / similar


def _is_safe(path: Path, is_wanted: Callable[[Path], bool]) -> bool:
    """Whether a path fits; one that cannot be looked at does not."""
    try:
        return is_wanted(path)
    except (OSError, ValueError):  # too long, or with a character that no path has
        return False
